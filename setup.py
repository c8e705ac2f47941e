"""Build of the compiled modules. They are optional: without a C compiler, Python code is used."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDER = "ringfence/limiter/compiled"
FAST_PATH = "ringfence/transport/quic/fast_path"
REFUNDS = "node/requests/refunds"
MURMUR = "hashring/_murmur.pxd"
PACKED_DICT = "ringfence/limiter/packed/_packed_dict.pxd"
PARTS = ("_hot", "_algorithms", "_ring", "_siphash", "_slots", "_states", "_store")

extensions = cythonize(
    [
        Extension(
            f"ringfence.limiter.compiled.{name}",
            [f"{FOLDER}/{name}.pyx"],
            depends=[PACKED_DICT, *(f"{FOLDER}/{part}.pxd" for part in PARTS)],
            extra_compile_args=["-O3"],
        )
        for name in ("_store", "_hot", "_frames")
    ]
    + [
        Extension(
            name, [f"{name.replace('.', '/')}.pyx"], depends=depends, extra_compile_args=["-O3"]
        )
        for name, depends in (
            ("hashring._compiled", [MURMUR]),
            ("ringfence.limiter.packed._packed_dict", [PACKED_DICT, f"{FOLDER}/_states.pxd"]),
            ("node.shards._packed_rows", [MURMUR, PACKED_DICT, f"{FOLDER}/_states.pxd"]),
            ("ringfence.client.requests._check_ops", []),
        )
    ],
    language_level=3,
    compiler_directives={
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
    },
)
# Compiled from the Python modules, with types from `.pxd` files and with all checks of indexes.
extensions += cythonize(
    [
        Extension(
            f"{folder.replace('/', '.')}._{name}",
            [f"{folder}/{name}.py"],
            depends=[f"{folder}/_{each}.pxd" for each in (name, *depends)],
            extra_compile_args=["-O3"],
        )
        for folder, name, depends in (
            (FAST_PATH, "established_state", ()),
            (FAST_PATH, "packet_receiver", ("established_state",)),
            (FAST_PATH, "packet_sender", ("established_state",)),
            (REFUNDS, "recent_charges", ()),
        )
    ],
    language_level=3,
    compiler_directives={"annotation_typing": False},
)
for extension in extensions:
    extension.optional = True  # cythonize() would drop this option.

setup(ext_modules=extensions, options={"build_ext": {"parallel": os.cpu_count()}})
