"""The pages and pictures of every environment, planner, scheduler and learner, from the code."""
