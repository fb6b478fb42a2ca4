"""Who gives workers to malleable jobs: exact, proved and usual."""
