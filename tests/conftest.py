"""Under pytest the shapes and types in the annotations of the three pure layers are checked on every call."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook(["phloem.tree", "phloem.credit", "phloem.loss"], "typecheck.check")

# Machines are shared: how long an example takes says nothing about whether it is right.
settings.register_profile("phloem", deadline=None)
settings.load_profile("phloem")
