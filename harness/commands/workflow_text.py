"""The GitHub workflow that `treeproof init-backend` writes, as text."""

from __future__ import annotations

WORKFLOW = """\
# Every change is checked on a GPU: identities violated end the job, with the smallest cases kept.
name: treeproof {name}

on:
  push:
    branches: [main]
  pull_request:

permissions:
  contents: read

env:
  # What pip installs: a release, "treeproof @ git+https://…@COMMIT" or a wheel.{unknown}
  TREEPROOF: {requirement}

jobs:
  treeproof:
    # A runner of your own must not run what strangers send.
    if: github.event_name == 'push' || github.event.pull_request.head.repo.full_name == github.repository
    runs-on: [self-hosted, gpu] # the labels of your GPU runner
    timeout-minutes: 40
    steps:
      - uses: actions/checkout@v6
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
      - name: Install treeproof, and what {name} needs
        run: |
          python -m venv build/treeproof
          build/treeproof/bin/pip install "$TREEPROOF"
          echo "$PWD/build/treeproof/bin" >> "$GITHUB_PATH"
      - name: Is the machine ready?
        run: treeproof doctor --device cuda
      - name: Check
        run: |
          {command} --run-dir treeproof-gate/run --report treeproof-gate
      - name: Reports of a check that was killed
        if: always() && hashFiles('treeproof-gate/run/meta.json') != '' && hashFiles('treeproof-gate/report.html') == ''
        run: treeproof report treeproof-gate/run --report treeproof-gate
      - name: Keep the reports and the run
        if: always()
        uses: actions/upload-artifact@v6
        with:
          name: treeproof-{name}
          path: treeproof-gate
"""

UNKNOWN = """
  # This treeproof was installed from a folder, which your runner cannot see: say where it gets one."""
