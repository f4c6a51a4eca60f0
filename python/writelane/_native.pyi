sqlite_version: str
