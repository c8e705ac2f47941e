"""Short runs of the fuzz targets of the compiled modules, with the same bytes every time."""

from random import Random

from tests.programs import require_compiled

require_compiled()

from tests.fuzz import compiled_tables  # noqa: E402 - only where the modules were built


def test_the_compiled_and_the_plain_form_of_a_module_agree() -> None:
    random = Random(1)

    steps = sum(compiled_tables.run(random.randbytes(2000)) for _ in range(20))

    assert steps > 2000
