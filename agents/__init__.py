"""What is decided: planners, policies and learners."""
