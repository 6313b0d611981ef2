#!/usr/bin/env bash
# Workflows and templates against the schemas of GitHub, GitLab and Buildkite, as check-jsonschema ships them.
#     ci/schemas.sh [COMMAND]      check-jsonschema, where it is not in PATH
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command=${1:-check-jsonschema}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# $1: the schema, $2: a key at the beginning of a line; then files. Each is refused once that key is misspelt.
holds() {
    local schema=$1 key=$2 file
    local how=()
    [ "$schema" != vendor.gitlab-ci ] || how=(--data-transform gitlab-ci)
    shift 2
    printf '%s: ' "$schema"
    "$command" --builtin-schema "$schema" "${how[@]}" "$@"
    for file; do
        sed "s/^\( *\)$key:/\1${key}x:/" "$file" >"$tmp/broken.yml"
        ! cmp -s "$file" "$tmp/broken.yml" || { echo "$file: no $key" >&2; return 1; }
        if "$command" --builtin-schema "$schema" "${how[@]}" "$tmp/broken.yml" >/dev/null; then
            echo "$schema does not see that $file is broken" >&2
            return 1
        fi
    done
}

github=(.github/workflows/*.yml ci/templates/github-*.yml)
holds vendor.github-workflows runs-on "${github[@]}"
holds custom.github-workflows-require-timeout timeout-minutes "${github[@]}"
holds vendor.gitlab-ci script ci/templates/gitlab-ci.yml
holds vendor.buildkite command ci/templates/buildkite.yml
