"""The Polish catalogue of reasons."""

from __future__ import annotations

from redrive.reasons.codes import Catalogue, ReasonCode


def _plural_form(number: int) -> int:
    if number == 1:
        return 0
    few = number % 10 in (2, 3, 4) and number % 100 not in (12, 13, 14)
    return 1 if few else 2


_TEXTS: dict[str, str] = {
    # text that has no code
    ReasonCode.TEXT: "{text}",
    # why a step, a run or a rollback failed
    ReasonCode.STEP_FAILED: (
        "krok {step!r} nie udał się ({category}): {why}|krok {step!r} nie udał się, próby: {n} ({category}): {why}"
    ),
    ReasonCode.STEP_NOT_UNDONE: "kroku {step!r} nie dało się wycofać: {why}",
    ReasonCode.WORKFLOW_RAISED: "przepływ pracy {workflow!r} zgłosił błąd {error_type}: {message}",
    ReasonCode.WORKFLOW_INPUT_UNUSABLE: ("danych wejściowych przepływu pracy {workflow!r} nie da się użyć: {why}"),
    ReasonCode.STEP_INPUT_UNUSABLE: "zapisanych danych wejściowych kroku {step!r} nie da się użyć: {why}",
    ReasonCode.RUN_UNREADABLE: "nie da się odczytać zapisanych danych tego przebiegu: {why}",
    ReasonCode.FAILURE_UNREADABLE: "błędu nie można pokazać: {why}",
    ReasonCode.WORKERS_DIED: (
        "przy tym przebiegu padł {n} proces roboczy|przy tym przebiegu padły {n} procesy robocze|przy "
        "tym przebiegu padło {n} procesów roboczych"
    ),
    ReasonCode.STEP_REPLAYED_ALONE: (
        "powtórzono tylko krok {step!r}: ponów przebieg od nieudanego kroku, aby ruszył dalej"
    ),
    ReasonCode.DEADLINE_PASSED: "przebieg przekroczył swój termin",
    ReasonCode.RUN_ROLLED_BACK: "przebieg wycofano",
    ReasonCode.RUN_CANCELLED_BY: "anulowane przez: {by}[: {comment}]",
    ReasonCode.CODE_CHANGED: (
        "dziennik zawiera {recorded}, a kod pyta teraz o {asked}; funkcja przepływu pracy zmieniła się w "
        "trakcie tego przebiegu"
    ),
    ReasonCode.JOURNAL_CALLS: "{calls:list}",
    ReasonCode.JOURNAL_CALL: "{name!r}[ (wywołanie {call})][ w gałęzi {branch}]",
    ReasonCode.JOURNAL_NOTHING: "nic więcej",
    ReasonCode.COMPENSATION_UNKNOWN: (
        "nie zarejestrowano kompensacji dla {steps:quoted}: uruchom proces roboczy, którego kod ją zawiera"
    ),
    ReasonCode.COMPENSATION_MISSING: (
        "{compensation!r}, która wycofuje krok {step!r}, nie jest zarejestrowana: uruchom proces "
        "roboczy, którego kod ją zawiera"
    ),
    ReasonCode.STORE_REFUSED_DATA: "magazyn danych odrzucił dane: {why}",
    ReasonCode.STEP_CUT_SHORT: (
        "krok {step!r} wykonuje się najwyżej raz i został przerwany: mógł dojść do skutku. Sprawdź to, a "
        "potem pomiń go albo podaj jego wynik ręcznie"
    ),
    ReasonCode.CIRCUIT_OPEN: "bezpiecznik {circuit!r} jest otwarty, więc kroku nie wywołano",
    ReasonCode.PAYLOAD_TOO_LARGE: (
        "{what} zajmuje {size}, więcej niż limit {limit}; zapisz to gdzie indziej i przekaż odwołanie "
        "albo podnieś REDRIVE_MAX_PAYLOAD"
    ),
    # how the engine closed a dead letter
    ReasonCode.REPLAY_SUCCEEDED: "uruchomiono ponownie",
    ReasonCode.STEP_REPLAY_SUCCEEDED: "uruchomiono ponownie częściowo",
    ReasonCode.ROLLED_BACK: "wycofano",
    ReasonCode.RUN_CANCELLED: "przebieg anulowano",
    ReasonCode.LETTER_EXPIRED: "wygasła",
    # what was decided after an attempt
    ReasonCode.RETRY_SCHEDULED: (
        "próba {attempt}[ z {of}][, HTTP {status_code}], {cause}[, oczekiwanie {delay:duration}][, "
        "Retry-After {retry_after:duration}][ + losowo {jitter:duration}][, następna o {next_at:clock} "
        "UTC]"
    ),
    ReasonCode.NOT_RETRIED: "próba {attempt}[ z {of}][, HTTP {status_code}], {cause}, bez ponowienia: {why}",
    ReasonCode.ATTEMPT_SUCCEEDED: "próba {attempt}, udana",
    ReasonCode.ATTEMPT_CANCELLED: "próba {attempt}: anulowana",
    ReasonCode.ATTEMPT_LOST: ("próba {attempt}: proces roboczy padł; próba zostanie powtórzona pod tym samym numerem"),
    ReasonCode.ATTEMPT_RELEASED: (
        "próba {attempt}: proces roboczy zatrzymano; próba zostanie powtórzona pod tym samym numerem"
    ),
    ReasonCode.ATTEMPT_INTERRUPTED: ("próba {attempt}: przerwana: mogła dojść do skutku i nie zostanie powtórzona"),
    ReasonCode.ATTEMPT_ENDED: "próba {attempt}: {end}",
    ReasonCode.CIRCUIT_WAS_OPEN: "bez wywołania: bezpiecznik był otwarty; oczekiwanie nie zużywa prób",
    ReasonCode.TIMED_OUT: "przekroczono czas",
    ReasonCode.NETWORK_ERROR: "błąd sieci",
    ReasonCode.RATE_LIMITED: "za dużo zapytań",
    ReasonCode.SERVER_ERROR: "błąd serwera",
    ReasonCode.DEPENDENCY_UNAVAILABLE: "usługa niedostępna",
    ReasonCode.INVALID_DATA: "błędne dane",
    ReasonCode.NOT_AUTHORISED: "brak uprawnień",
    ReasonCode.NOT_FOUND: "nie znaleziono",
    ReasonCode.CLIENT_ERROR: "odmowa drugiej strony",
    ReasonCode.CONFIGURATION_MISSING: "brak konfiguracji",
    ReasonCode.INTERNAL_ERROR: "błąd w kodzie",
    ReasonCode.UNCLASSIFIED_ERROR: "nierozpoznany błąd",
    # why an attempt is not repeated
    ReasonCode.RETRIES_EXHAUSTED: "wyczerpano ponowienia",
    ReasonCode.NO_RETRY_ALLOWED: "polityka nie pozwala na ponowienie",
    ReasonCode.RETRY_TIME_EXCEEDED: "kolejna próba przekroczyłaby limit {limit:duration} od pierwszej",
    ReasonCode.STEP_AT_MOST_ONCE: "krok wykonuje się najwyżej raz",
    ReasonCode.RAISED_NON_RETRYABLE: "zgłoszono go jako NonRetryable",
    ReasonCode.IN_NEVER_RETRY_ON: "polityka wymienia go w never_retry_on",
    ReasonCode.NOT_IN_RETRY_ON: "retry_on polityki go nie wymienia",
    ReasonCode.CATEGORY_NOT_RETRIED: "błędów kategorii {category} nie ponawia się",
    ReasonCode.RUN_ENDING: "przebieg się kończy",
    # why a circuit changed
    ReasonCode.CIRCUIT_PROBE_FAILED: "wywołanie próbne nie udało się: {category}",
    ReasonCode.CIRCUIT_FAILURES: (
        "{n} błąd w ciągu {window:duration}, ostatni: {category}|{n} błędy w ciągu {window:duration}, "
        "ostatni: {category}|{n} błędów w ciągu {window:duration}, ostatni: {category}"
    ),
    ReasonCode.CIRCUIT_OPEN_TIME_OVER: "był otwarty przez {open_for:duration}",
    ReasonCode.CIRCUIT_PROBE_SUCCEEDED: "wywołanie próbne się udało",
    # what follows a failure, in notifications
    ReasonCode.NEXT_ATTEMPT: "nastąpi próba {attempt}",
    ReasonCode.NEXT_UNDONE: "jego kroki wycofano: nic nie trzeba robić",
    ReasonCode.NEXT_DECISION: (
        "nieudana sprawa jest otwarta: uruchom ją ponownie, popraw dane wejściowe, rozwiąż albo zignoruj"
    ),
    ReasonCode.NEXT_WORKFLOW: "błąd trafia do przepływu pracy; jeśli go nie obsłuży, przebieg się nie uda",
    ReasonCode.NEXT_PROBE: "wywołania czekają, aż wywołanie próbne pokaże, że usługa jest dostępna",
    # what a dry run warns of
    ReasonCode.VERSION_CHANGED: ("kod zmienił się od tego czasu: zapisano w wersji {version}, najnowsza to {newest}"),
    ReasonCode.WORKFLOW_NEVER_REGISTERED: (
        "przepływ pracy {workflow!r} nie jest zarejestrowany: nic nie ruszy, dopóki nie zarejestruje go proces roboczy"
    ),
    ReasonCode.WORKFLOW_HAS_NO_WORKER: (
        "żaden działający proces roboczy nie ma przepływu pracy {workflow!r}: decyzja zostanie "
        "odrzucona, dopóki któryś go nie zarejestruje"
    ),
    ReasonCode.RESULTS_FROM_ORIGINAL_INPUT: "wyniki, które zostają, policzono z pierwotnych danych",
    ReasonCode.SAME_IDEMPOTENCY_KEY: (
        "{names:list} zostanie wywołane z kluczem idempotencji pierwotnych danych: usługa, która zna ten "
        "klucz, może odpowiedzieć jak wtedy; new_operation wysyła nowy klucz|{names:list} zostaną "
        "wywołane z kluczem idempotencji pierwotnych danych: usługa, która zna ten klucz, może "
        "odpowiedzieć jak wtedy; new_operation wysyła nowy klucz"
    ),
    ReasonCode.NEW_IDEMPOTENCY_KEYS: (
        "usługi zewnętrzne zobaczą nowe klucze idempotencji i każde wywołanie uznają za nowe"
    ),
    ReasonCode.STEP_MAY_HAVE_HAPPENED: "{step} przerwano: mogło dojść do skutku, więc najpierw sprawdź",
    ReasonCode.STEP_ACTS_AGAIN: "{step} udało się wcześniej i znów zadziała na zewnątrz: {effect}",
    # why a saved view is refused
    ReasonCode.VIEW_LIST_UNKNOWN: "widoki dotyczą list {lists:list}, a nie {given}",
    ReasonCode.TOO_MANY_SHARED_VIEWS: (
        "organizacja {tenant!r} udostępnia już {n} widoków tej listy; najpierw usuń jeden z nich"
    ),
    ReasonCode.TOO_MANY_VIEWS: "masz już {n} widoków tej listy; najpierw usuń jeden z nich",
    ReasonCode.SHARED_VIEW_NOT_FOUND: "ta lista nie ma udostępnionego widoku {name}",
    ReasonCode.VIEW_NOT_FOUND: "ta lista nie ma widoku {name}",
    ReasonCode.VIEW_NAME_INVALID: (
        "nazwa widoku ma od 1 do {longest} znaków drukowalnych i nie zawiera ukośnika; podano {given}"
    ),
    ReasonCode.VIEW_FILTER_TOO_LONG: "filtr widoku ma najwyżej {longest:,} znaków; pomiń coś",
    ReasonCode.VIEW_FIELD_UNKNOWN: "listy {list} nie da się zawęzić przez {names}; można przez {known:list}",
    ReasonCode.VIEW_FILTER_EMPTY: ("filtr widoku jest pusty: najpierw zawęź listę, na przykład przez code=timeout"),
    # why a decision on many dead letters is refused
    ReasonCode.SET_NOT_FOUND: "nie ma decyzji zbiorczej {id}",
    ReasonCode.SET_DONE: "decyzja zbiorcza {id} jest zakończona: objęła wszystkie swoje sprawy",
    ReasonCode.SET_STOPPED: ("decyzję zbiorczą {id} zatrzymał(a) {by}; dla pozostałych spraw rozpocznij następną"),
    ReasonCode.SET_UNREADABLE: "decyzji zbiorczej {id} nie da się tu wykonać: {why}",
    ReasonCode.SET_ITEM_STATUS_UNKNOWN: "sprawy decyzji zbiorczej mają stan {known:list}, a nie {given}",
    ReasonCode.RATE_INVALID: (
        "{given} nie jest tempem: podaj liczbę całkowitą na sekundę, minutę lub godzinę, na przykład 50/s albo 600/m"
    ),
    ReasonCode.RATE_OUT_OF_RANGE: (
        "tempo to od 1 do {most:,} na sekundę, minutę lub godzinę, a nie {given:,}; aby nic nie ruszało, "
        "wstrzymaj decyzję zbiorczą"
    ),
    ReasonCode.LETTERS_NOT_SELECTED: ("nie wybrano żadnej sprawy; zaznacz sprawy albo wybierz wszystkie pasujące"),
    ReasonCode.LETTER_IDS_NEEDED: "podaj LetterFilter albo listę identyfikatorów, a nie {given}",
    ReasonCode.LETTER_IDS_TOO_MANY: ("podaj od 1 do {most:,} identyfikatorów, a nie {count:,}; albo LetterFilter"),
    ReasonCode.LETTER_ID_INVALID: "{id} nie jest identyfikatorem nieudanej sprawy",
    ReasonCode.ONLY_OPEN_LETTERS: "decyzja dotyczy tylko otwartych spraw, a filtr wybiera {statuses:list}",
    ReasonCode.TENANTS_DIFFER: "filtr wymienia organizację {filter!r}, a wywołanie {call!r}",
    ReasonCode.UNEXPECTED_ERROR: (
        "nieoczekiwany błąd podczas ponownego uruchamiania: {error_type}: {message}. Szczegóły są w dzienniku serwera"
    ),
    # why a decision on one dead letter or run is refused
    ReasonCode.LETTER_NOT_FOUND: "nie ma nieudanej sprawy {id}",
    ReasonCode.LETTER_GONE: "nie ma nieudanej sprawy {id} albo jej przebieg usunięto",
    ReasonCode.LETTER_OR_RUN_NOT_FOUND: "nie ma nieudanej sprawy ani przebiegu {id}",
    ReasonCode.RUN_NOT_FOUND: "nie ma przebiegu {id}",
    ReasonCode.LETTER_RUN_PURGED: "przebieg sprawy {id} usunięto: nic już nie można o niej zdecydować",
    ReasonCode.RUN_PURGED: (
        "przebieg {run} usunięto: jego danych wejściowych i kroków już nie ma, więc nie da się go uruchomić ponownie"
    ),
    ReasonCode.RUN_SEALED: "przebiegu {run} nie da się stąd uruchomić ponownie: {why}",
    ReasonCode.RUN_REPLAYED_AS: "przebieg {run} uruchomiono ponownie jako {other}; zdecyduj o tamtym",
    ReasonCode.LETTER_REPLAYING: (
        "sprawa {id} jest już uruchamiana ponownie na mocy innej decyzji; poczekaj, aż to się skończy"
    ),
    ReasonCode.LETTER_RESOLVED: "sprawa {id} jest rozwiązana ({how}): zobacz jej przebieg {run}",
    ReasonCode.LETTER_CLOSED: ("sprawa {id} jest zamknięta ({status}: {how}); ponów zamiast niej jej przebieg {run}"),
    ReasonCode.LETTER_CLOSED_BEFORE: ("sprawa {id} ma już stan {status} ({how}): dodaj komentarz, aby coś dopisać"),
    ReasonCode.LETTER_NOT_OPEN: "sprawa {id} ma stan {status} i nie można jej zamknąć jako {wanted}",
    ReasonCode.NO_REASON_GIVEN: "nie podano powodu",
    ReasonCode.KEY_USED: "klucz {key!r} służył innej decyzji o {id}",
    ReasonCode.WORKFLOW_UNREGISTERED: (
        "przepływu pracy {workflow!r} nigdy nie zarejestrowano, więc by nie ruszył: uruchom proces "
        "roboczy, który go ma, i zdecyduj ponownie"
    ),
    ReasonCode.WORKFLOW_ABANDONED: (
        "żaden działający proces roboczy nie ma już przepływu pracy {workflow!r}, więc by nie ruszył: "
        "uruchom proces roboczy, który go ma, i zdecyduj ponownie"
    ),
    ReasonCode.CODE_UNREGISTERED: (
        "{kind} {name!r}: tego nigdy nie zarejestrowano, więc wartości nie da się sprawdzić: uruchom "
        "proces roboczy, który to ma"
    ),
    ReasonCode.RUN_ENDED: "przebieg {run} zakończył się jako {status} i nie można go już anulować",
    ReasonCode.RUN_BEING_UNDONE: (
        "przebieg {run} jest wycofywany, czego się nie anuluje: połowa zostałaby niewycofana"
    ),
    ReasonCode.RUN_CONFIRMING: (
        "przebieg {run} potwierdza swoje rezerwacje i nie można go już anulować; może iść tylko naprzód"
    ),
    # why a replay does not fit its run
    ReasonCode.NOT_REPLAYABLE: (
        "przebieg {run} ma stan {status}: ponownie uruchamia się tylko przebiegi nieudane lub częściowe"
    ),
    ReasonCode.ROLLED_BACK_ALREADY: "przebieg {run} ma stan {status}: jest już wycofany",
    ReasonCode.NOT_ROLLED_BACK: (
        "przebieg {run} ma stan {status}: wycofuje się tylko przebiegi nieudane lub częściowe"
    ),
    ReasonCode.ROLLBACK_STOPPED: (
        "wycofywanie przebiegu {run} zatrzymało się na {compensation!r} kroku {step!r}: wznów je"
    ),
    ReasonCode.PIVOT_PASSED: (
        "przebieg {run} minął punkt bez powrotu, krok {step!r}, i może iść tylko naprzód: uruchom go ponownie"
    ),
    ReasonCode.RUN_UNDONE: (
        "kroki przebiegu {run} wycofano, więc nie ma od czego kontynuować: uruchom go od nowa trybem "
        "FULL, jako nową operację"
    ),
    ReasonCode.ROLLBACK_NEEDS_DECISION: (
        "przebieg {run} jest wycofywany i zatrzymał się na {compensation!r} kroku {step!r}: wznów to "
        "(FROM_FAILED), pomiń (SKIP) albo oznacz jako zrobione (COMPLETE), bez zmiany danych wejściowych"
    ),
    ReasonCode.ROLLBACK_KEEPS_KEYS: (
        "wycofywanie zachowuje klucze idempotencji, inaczej coś mogłoby zostać wycofane dwa razy"
    ),
    ReasonCode.NOT_UNDONE_YET: ("przebiegu {run} jeszcze nie wycofano; potem będzie można uruchomić go od nowa"),
    ReasonCode.NEW_OPERATION_NEEDED: (
        "kroki przebiegu {run} wycofano, a usługi zewnętrzne uznałyby te same wywołania za powtórki: "
        "podaj new_operation, aby wykonać go od nowa"
    ),
    ReasonCode.ROLLBACK_RUNNING: "przebieg {run} jest wycofywany; poczekaj, aż to się skończy albo zatrzyma",
    ReasonCode.OTHER_COMPENSATION_NEXT: ("następna kompensacja to {compensation!r} kroku {step!r}, a nie {given}"),
    ReasonCode.STEP_CONFIRMED: (
        "{confirmation!r} potwierdziło krok tego przebiegu, więc może iść tylko naprzód: użyj "
        "FROM_FAILED, SKIP albo COMPLETE, albo uruchom go od nowa trybem FULL jako nową operację"
    ),
    ReasonCode.FROM_STEP_NEEDED: "FROM_STEP wymaga numeru kroku, od którego zacząć: podaj from_step",
    ReasonCode.FROM_STEP_UNUSED: "from_step pasuje tylko do trybu FROM_STEP, a nie do {mode}",
    ReasonCode.FROM_STEP_INVALID: "from_step to numer kroku, a nie {given}",
    ReasonCode.FROM_STEP_UNKNOWN: "nie ma kroku o numerze {index}; zapisane kroki to {steps}",
    ReasonCode.INPUT_AND_PATCH: "wyślij całe dane wejściowe albo łatę, nie jedno i drugie",
    ReasonCode.INPUT_KEPT: ("{mode} zachowuje dane wejściowe; zmień je w trybie FROM_FAILED, FROM_STEP albo FULL"),
    ReasonCode.OUTPUT_UNUSED: "output to wynik nieudanego kroku; pasuje do SKIP i COMPLETE",
    ReasonCode.UNDO_UNUSED: "kompensację wymienia się, aby ją pominąć (SKIP) albo wykonać ręcznie (COMPLETE)",
    ReasonCode.SKIP_STEPS_UNUSED: "skip_steps pasuje do FROM_FAILED i FROM_STEP",
    ReasonCode.SKIP_STEPS_TWICE: "skip_steps podaje dwa wyniki kroku {step!r}",
    ReasonCode.STEP_WOULD_REPEAT: (
        "krok {step!r} (numer {index}) wykonuje się najwyżej raz i zostałby wywołany ponownie: zacznij "
        "za nim albo od {index}, jeśli na pewno nic się nie stało"
    ),
    ReasonCode.STEP_UNCERTAIN: (
        "krok {step!r} wykonuje się najwyżej raz i został przerwany, gdy przebieg się skończył: mógł "
        "dojść do skutku. Sprawdź to, a potem ponów przebieg z jego wynikiem w skip_steps albo zacznij "
        "od niego: FROM_STEP {index}"
    ),
    ReasonCode.FULL_WOULD_REPEAT: (
        "krok {step!r} wykonuje się najwyżej raz, a FULL wywołałby go ponownie: użyj FROM_STEP za nim "
        "albo podaj new_operation, jeśli to ma być nowa operacja"
    ),
    ReasonCode.STEP_SUCCEEDED: (
        "krok {step!r} udał się i nie zostanie wywołany ponownie, więc nie można go pominąć; aby uzyskać "
        "inny wynik, zacznij od niego: FROM_STEP {index}"
    ),
    ReasonCode.NO_STEP_FAILED: (
        "{mode} dotyczy nieudanego kroku, a tu żaden nie zawiódł: użyj FROM_FAILED, FROM_STEP albo FULL"
    ),
    ReasonCode.STEP_CALL_UNCERTAIN: (
        "krok {step!r} wykonuje się najwyżej raz i mógł dojść do skutku: sprawdź to, a potem pomiń go "
        "(SKIP) z wynikiem, uzupełnij ręcznie albo zacznij od niego: FROM_STEP {index}"
    ),
    ReasonCode.REPLAY_OPTION_UNKNOWN: "ponowne uruchomienie nie ma opcji {names}; ma {known:list}",
    ReasonCode.REPLAY_MODE_UNKNOWN: "nie ma trybu {given}; są {known:list}",
    ReasonCode.RETRY_POLICY_NEEDED: "retry przyjmuje RetryPolicy, a nie {given}",
    ReasonCode.PATCH_OBJECT_NEEDED: (
        "łata musi być obiektem JSON, który polom przypisuje nowe wartości; null usuwa pole"
    ),
    ReasonCode.INPUT_NOT_PATCHABLE: ("łatać można tylko dane wejściowe, które są obiektem JSON; wyślij całe dane"),
    ReasonCode.MASK_AMBIGUOUS: (
        "{paths:list}[ i jeszcze {more}]: {mask} zastępuje ukrytą wartość, ale nie wiadomo którą. Wpisz "
        "prawdziwą wartość albo pomiń to pole w łacie"
    ),
    # why another request is refused
    ReasonCode.POLICY_NEEDED: "oczekiwano RetryPolicy, a nie {given}",
    ReasonCode.POLICY_TARGET_NEEDED: "wskaż przepływ pracy, krok albo oba, których dotyczy polityka",
    ReasonCode.CIRCUIT_UNKNOWN: (
        "z bezpiecznikiem {circuit!r} organizacji {tenant!r} nic się dotąd nie działo: wywołania przez "
        "niego przechodzą. `list` pokazuje te, z którymi coś się działo"
    ),
    ReasonCode.CIRCUIT_SETTINGS_NEEDED: "podaj, co ustawić: failures, window, open_for, probes, on_open",
    ReasonCode.CIRCUIT_NAME_FIXED: "nazwy bezpiecznika nie można ustawić: określa ją kod",
    ReasonCode.CIRCUIT_KEY_INVALID: (
        "{given} nie jest bezpiecznikiem: podaj jego nazwę albo PRZEPŁYW/KROK, jeśli jej nie ma"
    ),
    ReasonCode.NOTIFICATION_NOT_FOUND: ("nie ma powiadomienia {id}; `redrive notifications list` pokazuje wszystkie"),
    ReasonCode.MESSAGE_NOT_FOUND: "nie ma wiadomości {id}; dostarczone są przechowywane przez dzień",
    ReasonCode.SINK_NOT_FOUND: "nie ma odbiorcy {name}; są: {known}",
    ReasonCode.SCHEDULE_IN_CODE: (
        "działający proces roboczy ma harmonogram {schedule!r} przepływu pracy {workflow!r} w swoim "
        "kodzie; usuń go tam albo wstrzymaj"
    ),
    ReasonCode.SCHEDULE_NOT_FOUND: (
        "przepływ pracy {workflow!r} nie ma harmonogramu {schedule!r} dla organizacji {tenant!r}; są: {known}"
    ),
    # what is wrong with a URL, an HTTP request or a start
    ReasonCode.URL_TOO_LONG: "adres URL musi być tekstem o długości najwyżej {most} znaków",
    ReasonCode.URL_SCHEME_MISSING: "adres URL musi zaczynać się od http:// lub https:// i nazwy hosta",
    ReasonCode.URL_CHARACTER_INVALID: (
        "adres URL nie może zawierać znaku {character}; w ścieżce i w zapytaniu zapisz go w kodowaniu procentowym"
    ),
    ReasonCode.URL_HAS_CREDENTIALS: "adres URL nie może zawierać nazwy użytkownika ani hasła; wyślij je w nagłówku",
    ReasonCode.URL_HOST_INVALID: "host w adresie URL jest nieprawidłowy",
    ReasonCode.URL_PORT_INVALID: "port w adresie URL musi być liczbą od 1 do 65535",
    ReasonCode.URL_HOST_UNUSUAL: (
        "host {host} w adresie URL nie jest ani nazwą, ani adresem w zwykłej postaci: czterema liczbami "
        "dziesiętnymi bez zer na początku albo adresem IPv6 w nawiasach, bez strefy. Nazwy składają się ze "
        "znaków ASCII (inne zapisz jako xn--…) i nie kończą się kropką"
    ),
    ReasonCode.URL_PORT_TAKEN: "{origin}: port {port} należy do {protocol}, a nie do HTTP",
    ReasonCode.HTTP_METHOD_INVALID: "{method} nie jest metodą HTTP: metody zapisuje się wielkimi literami",
    ReasonCode.HTTP_HEADER_INVALID: "nagłówka {name} nie można wysłać: musi to być jeden wiersz zwykłego tekstu",
    ReasonCode.HTTP_HEADER_RESERVED: "nagłówek {name} ustawia klient: pomiń go",
    ReasonCode.RESPONSE_NOT_JSON: "treść odpowiedzi nie jest w formacie JSON",
    ReasonCode.RESPONSE_TRUNCATED: "treść odpowiedzi jest za duża i została obcięta",
    ReasonCode.EVENT_HAS_KEY: "zdarzenie samo jest kluczem idempotencji: pomiń idempotency_key",
    ReasonCode.START_ITEM_INVALID: (
        "start_many przyjmuje krotki argumentów albo Start(...), a nie {type}: pojedynczy argument zapisz jako (value,)"
    ),
    ReasonCode.WORKFLOW_NOT_REGISTERED: "nie ma procesu o nazwie {workflow}: zarejestrowane są {known}",
    # what is wrong with a value that a person typed
    ReasonCode.OBJECT_NEEDED: "{field} musi być obiektem, który nazwom przypisuje wartości, a nie {given}",
    ReasonCode.FLAG_NEEDED: "{field} to True albo False, a nie {given}",
    ReasonCode.SHORT_TEXT_NEEDED: (
        "{field} musi być tekstem o długości od 1 do {longest} znaków drukowalnych, a nie {given}"
    ),
    ReasonCode.LONG_TEXT_NEEDED: ("{field} musi być tekstem o długości od 1 do {longest:,} znaków, a nie {given}"),
    ReasonCode.TEXT_UNSTORABLE: ("{field} zawiera znak NUL albo pół znaku, czego żadna baza danych nie przechowa"),
    ReasonCode.ENGINE_NAME_TAKEN: "{name!r} to podpis decyzji samego silnika; podaj w `by`, kim jesteś",
    ReasonCode.NOT_JSON: "{what}: to nie jest JSON: {why}",
    ReasonCode.MASKED_OUTPUT: (
        "{paths:list}: {mask} zastępuje ukrytą wartość, której żaden krok nie zwraca; wpisz prawdziwą wartość: {what}"
    ),
    ReasonCode.WORKFLOW_INPUT: "dane wejściowe przepływu pracy {workflow!r}",
    ReasonCode.STEP_OUTPUT: "wynik kroku {step!r}",
    ReasonCode.VALUE_INVALID: "{what}: niezgodne: {faults:faults}[ (i jeszcze {more})]",
    ReasonCode.FAULTS: "{faults:faults}[ (i jeszcze {more})]",
    ReasonCode.FAULT: "[{path}: ]{why}",
    ReasonCode.FIELD_UNKNOWN: "nie ma takiego pola[; są: {known}]",
    ReasonCode.FORM_LACKS_FIELDS: "formularz nie ma pól na tę zmianę: edytuj dalej jako JSON",
    ReasonCode.MODE_KEEPS_INPUT: (
        "ten sposób zostawia dane wejściowe bez zmian: cofnij poprawkę albo wybierz inny sposób"
    ),
    ReasonCode.INPUT_OBJECT_NEEDED: (
        "potrzebny jest tu obiekt, który nazwom przypisuje wartości, na przykład {example}"
    ),
    ReasonCode.POLICY_OBJECT_NEEDED: "zasady ponawiania to obiekt, na przykład {example}",
    ReasonCode.STEP_CHOICE_NEEDED: "wybierz krok, od którego kontynuować",
    ReasonCode.OUTPUT_NEEDED: "podaj wynik kroku jako JSON, na przykład {example}",
    ReasonCode.OUTPUT_NOT_JSON: (
        "wynik nie jest poprawnym JSON: {why}. Tekst wymaga cudzysłowów, na przykład {example}"
    ),
    ReasonCode.JSON_SYNTAX: "wiersz {line}, kolumna {column}: {why}",
    ReasonCode.JSON_TOO_DEEP: "zagnieżdżenie jest zbyt głębokie; zapisz to płasko albo przekaż odwołanie",
    ReasonCode.JSON_NUMBER_TOO_LONG: "liczba ma za dużo cyfr; zapisz ją jako tekst",
    ReasonCode.JSON_NUMBER_TOO_LARGE: "{number} to więcej, niż da się zapisać; zapisz to jako tekst",
    ReasonCode.JSON_NAME_TWICE: ("wiersz {line}: {name} podano dwa razy, najpierw w wierszu {first}; zostaw jedno"),
    ReasonCode.JSON_CONSTANT: "{word} to nie JSON; pomiń to albo zapisz jako tekst",
    # what is wrong with one place of a value
    ReasonCode.PYDANTIC_RULE: "{message}",
    ReasonCode.NESTED_TOO_DEEP: ("zagnieżdżone głębiej niż {most} poziomów; zapisz to płasko albo przekaż odwołanie"),
    ReasonCode.NUMBER_TOO_LONG: "liczba ma za dużo cyfr; przekaż ją jako tekst",
    ReasonCode.JSON_INVALID: "to nie jest poprawny JSON ({why})",
    ReasonCode.NOT_STORABLE_AS_ANNOTATED: "wartości typu {type} nie da się zapisać zgodnie z adnotacją",
    ReasonCode.REFERS_TO_ITSELF: "odwołuje się do siebie; przekaż dane bez cykli",
    ReasonCode.SURROGATES_JOIN: "dwa surogaty stałyby się jednym znakiem; przekaż poprawny tekst",
    ReasonCode.NOT_STORABLE: "{kind}: tego nie da się zapisać; przekaż dane albo odwołanie",
    ReasonCode.INTEGER_TOO_LONG: ("liczby całkowitej o ponad 4300 cyfrach nie da się zapisać; przekaż ją jako tekst"),
    ReasonCode.NO_JSON_FORM: "{value} nie ma tu postaci JSON; użyj adnotacji float",
    ReasonCode.TYPE_DIFFERS: "oczekiwano {expected}, otrzymano {found}",
    ReasonCode.ANNOTATION_DIFFERS: "ta wartość typu {type} nie pasuje do swojej adnotacji",
    ReasonCode.NOT_STORABLE_HERE: "wartości typu {type} nie da się tu zapisać ({why})",
    ReasonCode.NOT_READABLE_BACK: "nie da się odczytać z powrotem: {error_type}: {message}",
    ReasonCode.CHANGED_BY_READING: "odczyt zmieniłby tę wartość; przekaż tekst bez pojedynczych surogatów",
    ReasonCode.UNION_AMBIGUOUS: (
        "wartość typu {type} zostałaby odczytana jako {other}; daj członkom unii pole Literal, które je "
        "odróżnia, albo umieść węższy jako pierwszy"
    ),
    ReasonCode.EXPECTED: "oczekiwano: {expected}, znaleziono: {found}",
    ReasonCode.EXPECTED_NOTHING: "nic tu nie powinno być, znaleziono: {found}",
    ReasonCode.FIELD_MISSING: "oczekiwano: {expected}, ale pola brakuje",
    ReasonCode.FIELD_NAME_INVALID: "nazwa pola powinna być: {expected}",
    ReasonCode.EXPECTED_UNIQUE: "każdy element może wystąpić tylko raz, a jeden jest dwa razy",
    ReasonCode.EXPECTED_AT_LEAST: "oczekiwano liczby co najmniej {bound}, znaleziono mniejszą",
    ReasonCode.EXPECTED_AT_MOST: "oczekiwano liczby co najwyżej {bound}, znaleziono większą",
    ReasonCode.EXPECTED_ABOVE: "oczekiwano liczby większej niż {bound}, znaleziono inną",
    ReasonCode.EXPECTED_BELOW: "oczekiwano liczby mniejszej niż {bound}, znaleziono inną",
    ReasonCode.EXPECTED_MULTIPLE: "oczekiwano wielokrotności {step}, znaleziono liczbę pomiędzy",
    ReasonCode.EXPECTED_PATTERN: "oczekiwano tekstu zgodnego z /{pattern}/, znaleziono inny",
    ReasonCode.TOO_FEW_ITEMS: (
        "oczekiwano co najmniej {n} elementu, znaleziono {found}|oczekiwano co najmniej {n} elementów, "
        "znaleziono {found}"
    ),
    ReasonCode.TOO_MANY_ITEMS: (
        "oczekiwano co najwyżej {n} elementu, znaleziono {found}|oczekiwano co najwyżej {n} elementów, "
        "znaleziono {found}"
    ),
    ReasonCode.TOO_FEW_FIELDS: (
        "oczekiwano co najmniej {n} pola, znaleziono {found}|oczekiwano co najmniej {n} pól, znaleziono {found}"
    ),
    ReasonCode.TOO_MANY_FIELDS: (
        "oczekiwano co najwyżej {n} pola, znaleziono {found}|oczekiwano co najwyżej {n} pól, znaleziono {found}"
    ),
    ReasonCode.TEXT_TOO_SHORT: (
        "oczekiwano co najmniej {n} znaku, znaleziono {found}|oczekiwano co najmniej {n} znaków, znaleziono {found}"
    ),
    ReasonCode.TEXT_TOO_LONG: (
        "oczekiwano co najwyżej {n} znaku, znaleziono {found}|oczekiwano co najwyżej {n} znaków, znaleziono {found}"
    ),
    ReasonCode.ONE_OF: "{options:or}[ lub jeden z {more} innych]",
    ReasonCode.KIND_OBJECT: "obiekt",
    ReasonCode.KIND_LIST: "lista",
    ReasonCode.KIND_TEXT: "tekst",
    ReasonCode.KIND_INTEGER: "liczba całkowita",
    ReasonCode.KIND_NUMBER: "liczba",
    ReasonCode.KIND_FRACTION: "liczba z ułamkiem",
    ReasonCode.KIND_BOOLEAN: "prawda lub fałsz",
    ReasonCode.KIND_NULL: "null",
    ReasonCode.KIND_VALUE: "wartość",
    ReasonCode.KIND_OTHER_VALUE: "inna wartość",
    ReasonCode.KIND_FOREIGN: "coś, czego JSON nie zna",
}

POLISH = Catalogue(texts=_TEXTS, form=_plural_form, either=" lub ")
