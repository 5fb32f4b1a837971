"""Jobs of a batch system: typed resources in, one plain script out."""
