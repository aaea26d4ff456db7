"""Where what the programs that train need is installed: JAX, and the packages of the extra `embeddings`."""

from support.clients import installed

_PACKAGES = (
    "jax==0.10.2", "jaxlib==0.10.2", "optax==0.2.8", "absl-py==2.5.1", "ml_dtypes==0.6.0", "opt_einsum==3.4.0",
    "scipy==1.17.1", "typing_extensions==4.16.0",
)  # fmt: skip

SITE = installed.site("embeddings", installed.EMBEDDINGS)
PLACES = [str(SITE), str(installed.site("training", _PACKAGES))]
