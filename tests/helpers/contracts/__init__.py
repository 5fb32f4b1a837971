"""The contracts that every codec, communicator and device is held to."""
