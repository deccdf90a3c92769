"""A stand-in: what the node pack calls, with upstream's signatures and the folders of a test."""

from pathlib import Path

from calls import recorded

folder_names_and_paths: dict[str, tuple[list[str], set[str]]] = {}


@recorded
def get_folder_paths(folder_name):
    return list(folder_names_and_paths[folder_name][0])


@recorded
def get_filename_list(folder_name):
    folders, suffixes = folder_names_and_paths[folder_name]
    found = {
        str(path.relative_to(folder))
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file() and path.suffix in suffixes
    }
    return sorted(found)


@recorded
def get_full_path_or_raise(folder_name, filename):
    for folder in folder_names_and_paths[folder_name][0]:
        if (path := Path(folder, filename)).is_file():
            return str(path)
    raise FileNotFoundError(f"no file {filename} in a folder of {folder_name}")
