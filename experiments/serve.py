"""An exported scheduler answers over HTTP: a state in, what to do out.

    python -m experiments.serve checkpoint=unknown_durations port=8000
    curl -s http://127.0.0.1:8000/v1/decide -H 'Content-Type: application/json' -d @state.json

It listens until Ctrl-C or SIGTERM. Beyond this machine it wants a token (token_file).
"""

from experiments.command_line import main_of

main = main_of("serve", __name__)
