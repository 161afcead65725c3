"""Programs that run inside a sandbox: `candidate` (the completion's side) and `checker` (the tests' side).

Their compiled code is sent into the sandbox; nothing of the package is visible there. They import what costs no time:
`typing`, `json`, `re` and `ast` would take longer to load than most programs run, twice per completion.
"""
