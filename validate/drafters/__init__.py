"""Who proposes: drafters that read the target's own features, and how they propose trees."""
