SELECT
    outboxq_alembic_version.version_num,
    outboxq_alembic_version.oldest_code,
    outboxq_alembic_version.fingerprint
FROM outboxq_alembic_version
