"""Three scripts of the gallery that take seconds; tests/docs runs all of them."""

import pytest

from tests.helpers.gallery import check_ended, run_script


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["first_fit", "l1_path", "own_family"])
def test_a_script_of_the_gallery_ends_in_a_picture_and_a_sentence(name, tmp_path):
    check_ended(run_script(name, tmp_path))
