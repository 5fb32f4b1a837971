"""What the tests share: problems, oracles, stand-ins for devices, runs."""
