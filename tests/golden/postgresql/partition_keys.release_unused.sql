WITH
    given AS (
        SELECT batch.id AS id, batch.holder AS holder, batch.ordinal AS ordinal
        FROM unnest(%(given_id)s::UUID[], %(given_holder)s::UUID[]) WITH ORDINALITY AS batch(
            id,
            holder,
            ordinal
        )
    ),
    moved AS (
        UPDATE partition_claims
        SET task_execution_id=(
            SELECT given.holder
            FROM given
            WHERE partition_claims.task_execution_id = given.id
        )
        WHERE partition_claims.task_execution_id = any(
            array(
                (
                    SELECT changed.id
                    FROM (SELECT given.id AS id FROM given WHERE given.holder IS NOT NULL) AS changed
                )
            )
        )
    )
DELETE FROM partition_claims
WHERE partition_claims.task_execution_id = any(
    array(
        (
            SELECT unused.id
            FROM (SELECT given.id AS id FROM given WHERE given.holder IS NULL) AS unused
        )
    )
)
