"""What looks at weights that are on disk: losses, checkpoints, the model of a run."""
