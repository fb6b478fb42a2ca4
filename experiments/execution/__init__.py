"""Plans of pipelines as processes that run them; what is exported is what runs here."""
