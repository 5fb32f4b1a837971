"""Choose what runs on this machine: pilots, error bounds, the tuner."""
