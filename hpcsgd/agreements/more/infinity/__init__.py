"""ZeRO-Infinity: weights and states that are on disk, tile by tile."""
