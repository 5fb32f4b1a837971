"""Methods of one paper each."""
