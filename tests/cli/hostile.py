"""What somebody may have put in place of the files and folders of a run or a job."""

import os
import shutil
import socket

SECONDS = 600  # after which a command hangs


def link_to_device(path, _):
    path.symlink_to("/dev/zero")


def link_elsewhere(path, elsewhere):
    path.symlink_to(elsewhere)


def dangling_link(path, _):
    path.symlink_to(path.parent / "nowhere")


def pipe(path, _):
    os.mkfifo(path)


def folder(path, _):
    path.mkdir()


def listening(path, _):
    own, found = os.getcwd(), socket.socket(socket.AF_UNIX)
    os.chdir(path.parent)  # names of sockets are short
    try:
        found.bind(path.name)
    finally:
        os.chdir(own)
        found.close()


ENTRIES = (link_to_device, link_elsewhere, dangling_link, pipe, folder, listening)


def link_to_a_folder(path, outside):
    path.symlink_to(outside)


def link_to_nowhere(path, outside):
    path.symlink_to(outside.parent / "nowhere")


def a_file(path, _):
    path.write_text("precious")


def a_pipe(path, _):
    os.mkfifo(path)


IN_PLACE_OF_FOLDERS = (link_to_a_folder, link_to_nowhere, a_file, a_pipe)


def plant(entry, path, elsewhere):
    """Put `entry` where a file or a folder is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    entry(path, elsewhere)
