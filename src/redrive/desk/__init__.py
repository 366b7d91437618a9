"""What people do: look at runs and dead letters, cancel, set policies, pause workflows."""
