"""Gets a page and prints it, whatever its status."""

import sys
import urllib.error
import urllib.request

try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=3)
except urllib.error.HTTPError as error:
    answer = error
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
print(answer.read().decode())
