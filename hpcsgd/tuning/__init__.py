"""What should be run here: machine files, pilots, error bounds, the tuner."""
