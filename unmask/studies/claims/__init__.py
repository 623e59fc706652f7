"""What papers claim, and what becomes of it: claims as data, verdicts by tests, and the page that is generated from results."""
