#!/bin/sh
# Installs the peers that Sublet is compared with, at fixed versions, beside this script:
# Python packages into .venv, the Restate server into node_modules (both git-ignored).
# Needs python3.11 and npm. Running it again brings an existing installation up to date.
set -eu
export SCARF_ANALYTICS=false
cd "$(dirname "$0")"

[ -x .venv/bin/python ] || python3.11 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    ray==2.60.0 \
    bytewax==0.21.1 \
    restate-sdk==1.2.0 \
    hypercorn==0.18.0 \
    msgspec==0.22.0 \
    uvloop==0.23.0
npm install --silent --no-audit --no-fund --no-save --prefix . @restatedev/restate-server@1.7.12
