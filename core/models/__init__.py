"""The models that administrators add beside the configuration file."""
