"""Commands on the host without confinement, where that is allowed: the provider, and rules that catch mistakes."""
