"""Search and pages of the web: a file for each service, behind the ports of `ports`."""
