"""Methods of one paper, of which nothing else of the package knows more than a name."""
