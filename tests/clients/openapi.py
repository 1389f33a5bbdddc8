"""The gateway's document of its API, held against OpenAPI 3.1 by `openapi-spec-validator`.

Usage: openapi.py URL
"""

import json
import sys
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator

with urllib.request.urlopen(sys.argv[1]) as answer:
    document = json.load(answer)
errors = [f"{list(error.absolute_path)}: {error.message}" for error in OpenAPIV31SpecValidator(document).iter_errors()]
assert not errors, "\n".join(errors)
print("ok openapi", len(document["paths"]), "paths")
