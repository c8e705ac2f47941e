"""Short runs of the fuzz targets of the compiled modules, with the same bytes in every run."""

from random import Random
from types import ModuleType

import pytest

from tests.programs import require_compiled

require_compiled()

from tests.fuzz import batches, compiled_tables, packed_rows  # noqa: E402 - only where the modules were built


@pytest.mark.parametrize("target", [batches, compiled_tables, packed_rows])
def test_the_compiled_and_the_plain_form_of_a_module_agree(target: ModuleType) -> None:
    random = Random(1)

    steps = sum(target.run(random.randbytes(2000)) for _ in range(20))

    assert steps > 2000
