"""The configuration file: what it may say (model), and how it is read (source, load)."""
