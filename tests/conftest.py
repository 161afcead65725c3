"""Under pytest the shapes and types in the annotations of the three pure layers are checked on every call."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

from jaxtyping import install_import_hook

install_import_hook(["phloem.tree", "phloem.credit", "phloem.loss"], "beartype.beartype")
