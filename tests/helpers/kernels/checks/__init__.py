"""Each kernel beside float64: sizes, checks, planted faults."""
