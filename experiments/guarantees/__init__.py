"""What the apps of prices, of asynchronous training and of data pipelines do."""
