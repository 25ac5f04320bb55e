"""Options: the tables of flags, the configuration file, keyword arguments."""
