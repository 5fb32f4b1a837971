"""Where rows come from, who gets which, and in what order."""
