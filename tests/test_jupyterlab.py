"""jupyterlab.py: how JupyterLab is started."""

from gallery_lib.jupyterlab import command


def test_jupyterlab_is_for_this_machine_alone_and_opens_at_the_index(tmp_path):
    (tmp_path / "notebooks").mkdir()
    shown = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={tmp_path}"]
    assert command(tmp_path)[1:6] == ["-m", "jupyterlab", *shown, "--LabApp.default_url=/lab/tree/notebooks"]
    (tmp_path / "notebooks" / "index.ipynb").touch()
    words = command(tmp_path, ["--no-browser"])
    assert "--LabApp.default_url=/lab/tree/notebooks/index.ipynb" in words
    assert words.count("--no-browser") == 1
    assert not any("token=" in word for word in words)  # JupyterLab makes one, or takes JUPYTER_TOKEN
