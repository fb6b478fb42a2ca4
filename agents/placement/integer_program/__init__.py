"""The mixed-integer programs of a placement, and the search around their solutions."""
