;;; qwen-companion-environment-test.el --- Tests of the Python environment  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Which interpreter is used, and what an installation leaves that fails.  The
;; interpreters are scripts, so that nothing is downloaded.

;;; Code:

(require 'compile)
(require 'qwen-companion-test-helper)

(defconst qwen-companion-environment-test--python "#!/bin/sh
test \"$1\" = -I && shift
case \"$1 $2\" in
  -c*) %s;;
  '-m venv') mkdir -p \"$3/bin\" && cp \"$0\" \"$3/bin/python\";;
  '-m pip') %s;;
esac
"
  "A stand-in for Python, as a script: its answers for the version and for pip.")

(defmacro qwen-companion-environment-test--with (version pip &rest body)
  "Run BODY with a Python that runs VERSION when asked for it, and PIP.
The variable `directory' is that of the environments."
  (declare (indent 2) (debug t))
  `(qwen-companion-test-with-files
       (list (list "bin/python3"
                   (format qwen-companion-environment-test--python ,version ,pip)))
     (set-file-modes "bin/python3" #o755)
     (let* ((qwen-companion-python nil)
            (compilation-always-kill t)
            (directory (expand-file-name "environments/"))
            (qwen-companion-backend-directory directory)
            ;; No uv here.
            (exec-path (list (expand-file-name "bin") "/bin" "/usr/bin"))
            (process-environment
             (append (list (concat "PATH=" (string-join exec-path ":"))
                           (concat "XDG_STATE_HOME=" (expand-file-name "state")))
                     process-environment)))
       (cl-letf* ((find (symbol-function 'executable-find))
                  ((symbol-function 'executable-find)
                   (lambda (name &rest arguments)
                     (unless (equal name "uv")
                       (apply find name arguments)))))
         (save-window-excursion
           ,@body)))))

(defun qwen-companion-environment-test--current ()
  "Return the environment that an installation makes now."
  (qwen-companion-environment--current))

(defun qwen-companion-environment-test--install (&optional start)
  "Install, or call START for it, wait for the end, and return the messages."
  (qwen-companion-test-messages
    (funcall (or start #'qwen-companion-install-backend))
    (let ((process (get-buffer-process "*qwen-companion install*")))
      (qwen-companion-test-wait-for (not (process-live-p process)))
      (qwen-companion-test-wait-for
       (with-current-buffer "*qwen-companion install*"
         ;; After the start, which is told in the same way.
         (string-match-p "^Compilation \\(?:finished\\|exited\\)" (buffer-string)))))))

(defun qwen-companion-environment-test--make (name &optional foreign)
  "Make the environment NAME, with the mark of the companion unless FOREIGN."
  (let ((bin (expand-file-name (concat name "/bin/") qwen-companion-backend-directory)))
    (make-directory bin t)
    (copy-file (executable-find "python3") (expand-file-name "python" bin))
    (unless foreign
      (make-symbolic-link (executable-find "python3") (expand-file-name "../made-with" bin)))))

(ert-deftest qwen-companion-environment-test-install ()
  "It is used when it is complete, and those of other versions go."
  (qwen-companion-environment-test--with "exit 0" "echo Collecting anyio; exit 0"
    (should (equal (expand-file-name "bin/python3") (qwen-companion-environment-python)))
    (qwen-companion-environment-test--make "venv")
    (should (equal (expand-file-name "venv/bin/python" directory)
                   (qwen-companion-environment-python)))
    (should (qwen-companion-environment-outdated-p))
    (let ((said (qwen-companion-environment-test--install))
          (here default-directory))
      (should (string-match-p "Installing the Python environment\\.\\.\\.[1-9]%" said))
      (should (string-match-p "environment is ready" said))
      ;; A CLI that is started from its buffer runs where the user was.
      (with-current-buffer "*qwen-companion install*" (should (equal here default-directory))))
    (let ((current (qwen-companion-environment-test--current)))
      (should (equal (list (file-name-nondirectory current))
                     (directory-files directory nil "venv")))
      (should (equal (expand-file-name "bin/python" current) (qwen-companion-environment-python)))
      (should-not (qwen-companion-environment-outdated-p))
      ;; Again, over itself.
      (qwen-companion-environment-test--install)
      (should (equal (list (file-name-nondirectory current))
                     (directory-files directory nil "venv"))))))

(ert-deftest qwen-companion-environment-test-an-update-is-noticed ()
  "Files that are newer than the running Lisp, and those that are gone."
  (let* ((root (file-name-as-directory (make-temp-file "qwen-companion" t)))
         (qwen-companion-environment-source (expand-file-name "python/" root))
         (source (expand-file-name "lisp/base/x.el" root))
         (python (expand-file-name "python/qwen_companion/app.py" root))
         (load-history `((nil) ("/else/y.elc") (,(concat source "c")))))
    (unwind-protect
        (cl-flet ((set (file seconds)
                    (set-file-times file (time-add qwen-companion-environment--loaded seconds))))
          (dolist (file (list source python))
            (make-directory (file-name-directory file) t)
            (write-region "" nil file nil 'silent)
            (set file -5))
          (should-not (qwen-companion-environment-updated-p))
          (dolist (file (list source python))
            (set file 5)
            (should (qwen-companion-environment-updated-p))
            (set file -5))
          (delete-file source)
          (should (qwen-companion-environment-updated-p)))
      (delete-directory root t))))

(ert-deftest qwen-companion-environment-test-deletes-its-own-only ()
  "A directory without the companion's mark stays, and is named."
  (qwen-companion-environment-test--with "exit 0" "exit 0"
    (let ((foreign '("venv" "venv-0123456789ab" "venv-0123456789ab.part-x")))
      (dolist (name foreign)
        (qwen-companion-environment-test--make name t)
        (set-file-times (expand-file-name name directory) (time-subtract nil (* 25 60 60))))
      (qwen-companion-environment-test--make "venv-ba9876543210")
      (let ((said (qwen-companion-environment-test--install))
            (current (file-name-nondirectory (qwen-companion-environment-test--current))))
        (dolist (name foreign)
          (should (string-match-p (concat "so delete them yourself: .*/" (regexp-quote name)) said)))
        (should (equal (sort (cons current (copy-sequence foreign)) #'string<)
                       (directory-files directory nil "venv")))
        (qwen-companion-test-answering
            (lambda (question) (not (string-match-p "environments/venv," question)))
          (qwen-companion-uninstall)
          (should (equal foreign (directory-files directory nil "venv")))))
      ;; One that has the name of the new one is moved, not deleted.
      (let ((current (file-name-nondirectory (qwen-companion-environment-test--current))))
        (qwen-companion-environment-test--make current t)
        (should (string-match-p (concat (regexp-quote current) "\\.part-.*-old")
                                (qwen-companion-environment-test--install)))
        (should (directory-files directory nil "-old\\'"))))))

(ert-deftest qwen-companion-environment-test-its-window-goes ()
  "After success the frame is as before; after a failure, and where it is selected, it stays."
  (qwen-companion-environment-test--with "exit 0" "[ ! -e \"${0%/*}/../../broken\" ]"
    (delete-other-windows)
    (qwen-companion-environment-test--install)
    (should (one-window-p))
    (qwen-companion-environment-test--install
     (lambda ()
       (qwen-companion-install-backend)
       (select-window (get-buffer-window "*qwen-companion install*"))))
    (should-not (one-window-p))
    (delete-window)
    (make-directory (expand-file-name "broken" directory))
    (qwen-companion-environment-test--install)
    (should (get-buffer-window "*qwen-companion install*"))))

(ert-deftest qwen-companion-environment-test-again ()
  "The key that repeats a compilation makes an environment that is used."
  (qwen-companion-environment-test--with "exit 0" "[ -e \"${0%/*}/../../network\" ]"
    (qwen-companion-environment-test--install)
    (should-not (qwen-companion-environment--all))
    (make-directory (expand-file-name "network" directory))
    (should (string-match-p "environment is ready"
                            (qwen-companion-environment-test--install
                             (lambda ()
                               (with-current-buffer "*qwen-companion install*"
                                 (call-interactively (key-binding "g")))))))
    (should (equal (list (qwen-companion-environment-test--current))
                   (qwen-companion-environment--all)))))

(ert-deftest qwen-companion-environment-test-a-failure-breaks-nothing ()
  "The environment that was there is used on, and the cause is said."
  (qwen-companion-environment-test--with "exit 0" "echo 'no network here' >&2; exit 1"
    (qwen-companion-environment-test--make
     (file-name-nondirectory (qwen-companion-environment-test--current)))
    (let ((before (qwen-companion-environment-python)))
      (should (string-match-p "the installation failed: no network here;"
                              (qwen-companion-environment-test--install)))
      (should (equal before (qwen-companion-environment-python)))
      (should (= 1 (length (directory-files directory nil "venv")))))))

(defconst qwen-companion-environment-test--no-network "cat <<'END' >&2
WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by \
'NewConnectionError('<urllib3.HTTPConnection object at 0x7f42>: Failed to establish a new connection: \
[Errno 111] Connection refused')': /simple/anyio/
ERROR: Could not find a version that satisfies the requirement anyio==4.0 (from versions: none)
ERROR: No matching distribution found for anyio==4.0
END
exit 1"
  "Script that fails as pip does without a network.")

(ert-deftest qwen-companion-environment-test-the-cause-is-said ()
  "Point is at it, not at later output; nothing incomplete is left."
  (pcase-dolist (`(,version ,pip ,said ,line)
                 `(;; Its version is looked at before anything is made.
                   ("echo 'Python 3.8 is too old' >&2; exit 1" "exit 0" "Python 3\\.8 is too old;" nil)
                   ("exit 0"
                    "echo Collecting anyio; echo 'ERROR: hashes differ'; echo '  Got 1234'; exit 1"
                    "ERROR: hashes differ;" "ERROR: hashes differ")
                   ;; Without a network pip says only at the end that it has found nothing.
                   ("exit 0" ,qwen-companion-environment-test--no-network
                    "no connection to the package index: .*Connection refused" "WARNING: Retrying")
                   ;; Debian's Python without its package python3-venv.
                   ("exit 0" "echo 'The virtual environment was not created successfully because ensurepip is not
available.  On Debian/Ubuntu systems, you need to install the python3-venv
package using the following command.

Failing command: /usr/bin/python3'; exit 1"
                    "this Python has no venv; .*apt install python3-venv" "The virtual environment")
                   ;; That which is deleted gives the room back.
                   ("exit 0" "echo >\"${0%bin/python}large\"
echo 'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device' >&2
exit 1" "ERROR: .*No space left on device;" nil)))
    (ert-info (said)
      (qwen-companion-environment-test--with version pip
        (qwen-companion-environment-test--make "venv-0123456789ab")
        (should (string-match-p (concat "failed: " said) (qwen-companion-environment-test--install)))
        (should (equal '("venv-0123456789ab") (directory-files directory nil "venv")))
        (when line
          (with-current-buffer "*qwen-companion install*" (should (looking-at-p line))))))))

(ert-deftest qwen-companion-environment-test-the-version-is-checked-by-python ()
  "The real interpreter is new enough."
  (let ((check (car (qwen-companion-environment--commands
                     (executable-find qwen-companion-python) "/nowhere"))))
    (should (eql 0 (apply #'call-process (car check) nil nil nil (cdr check))))
    (let* ((qwen-companion-environment-oldest-python "99.1")
           (check (car (qwen-companion-environment--commands
                        (executable-find qwen-companion-python) "/nowhere"))))
      (with-temp-buffer
        (should (eql 1 (apply #'call-process (car check) nil t nil (cdr check))))
        (should (string-match-p "is too old, 99\\.1 is needed" (buffer-string)))))))

(ert-deftest qwen-companion-environment-test-offer ()
  "It is offered where nothing else would do, and the mode comes on after it."
  (cl-flet ((offered (answer)
              (let (asked)
                (qwen-companion-test-answering (lambda (_) (setq asked t) answer)
                  (list (qwen-companion-environment-offer) asked)))))
    ;; The stand-in's status is that of looking for a package.
    (qwen-companion-environment-test--with "exit 1" "exit 0"
      (should (equal '(nil t) (offered nil)))
      (let ((qwen-companion-python "python3"))
        (should (equal '(nil nil) (offered t))))
      (qwen-companion-environment-test--make "venv-0123456789ab")
      (should (equal '(nil nil) (offered t)))
      ;; The Python it was made with has gone.
      (delete-file (expand-file-name "venv-0123456789ab/bin/python" directory))
      (make-symbolic-link "/nowhere/python"
                          (expand-file-name "venv-0123456789ab/bin/python" directory))
      (should (equal '(nil t) (offered nil))))
    (qwen-companion-environment-test--with "exit 0" "exit 0"
      (should (equal '(nil nil) (offered t))))))

(ert-deftest qwen-companion-environment-test-the-mode-comes-on ()
  "It comes on after the missing environment was installed, and a message says so."
  (qwen-companion-environment-test--with
      "case \"$2\" in *importlib*) exit 1;; esac; exit 0" "exit 0"
    (cl-letf (((symbol-function 'y-or-n-p) #'always)
              ((symbol-function 'qwen-companion--enable) #'ignore)
              ((symbol-function 'qwen-companion--disable) #'ignore))
      (let ((said (qwen-companion-environment-test--install
                   (lambda () (call-interactively #'qwen-companion-mode)))))
        (unwind-protect
            (progn
              (should qwen-companion-mode)
              (should (string-match-p "ready, and the mode is on" said))
              (should-not (string-match-p "M-x qwen-companion-mode" said)))
          (qwen-companion-mode 0)))
      (should-not (memq #'qwen-companion--turn-on-once qwen-companion-environment-made-hook)))))

(ert-deftest qwen-companion-environment-test-the-remedy-helps ()
  "The advised installation is used, also with an interpreter of the user's."
  (let ((qwen-companion-python nil))
    (should (equal "run M-x qwen-companion-install-backend" (qwen-companion-environment-remedy))))
  (qwen-companion-environment-test--with "exit 0" "exit 0"
    (copy-file "bin/python3" "bin/python3.12")
    (let ((qwen-companion-python "python3.12"))
      (should (string-match-p "run M-x qwen-companion-install-backend, or install .*lock there"
                              (qwen-companion-environment-remedy)))
      ;; Without it, the environment of python3 is not taken.
      (let ((qwen-companion-python nil))
        (qwen-companion-environment-test--install))
      (should (equal (expand-file-name "bin/python3.12") (qwen-companion-environment-python)))
      (should (string-match-p "environment is ready" (qwen-companion-environment-test--install)))
      (should (file-in-directory-p (qwen-companion-environment-python) directory)))
    ;; Of the same one by another name, and of any where none is named.
    (let ((qwen-companion-python (expand-file-name "bin/python3.12")))
      (should (file-in-directory-p (qwen-companion-environment-python) directory)))
    (should (file-in-directory-p (qwen-companion-environment-python) directory))
    (let ((qwen-companion-python "python3"))
      (should (equal (expand-file-name "bin/python3") (qwen-companion-environment-python))))))

(ert-deftest qwen-companion-environment-test-two-emacsen ()
  "Another Emacs may make the same environment at the same time.
The leftovers of an Emacs that was killed are deleted."
  (qwen-companion-environment-test--with "exit 0"
      "while [ ! -e \"$GO\" ]; do sleep 0.05; done"
    (let* ((current (file-name-nondirectory (qwen-companion-environment-test--current)))
           (process-environment (cons (concat "GO=" (expand-file-name "go")) process-environment)))
      (qwen-companion-environment-test--make (concat current ".part-busy"))
      (qwen-companion-environment-test--make "venv-0123456789ab.part-killed")
      (set-file-times (expand-file-name "venv-0123456789ab.part-killed" directory)
                      (time-subtract nil (* 25 60 60)))
      (qwen-companion-environment-test--install
       (lambda ()
         (qwen-companion-install-backend)
         ;; The other one is done first.
         (qwen-companion-environment-test--make current)
         (write-region "" nil "go" nil 'silent)))
      (should (equal (list current (concat current ".part-busy"))
                     (directory-files directory nil "venv")))
      (should (file-symlink-p (expand-file-name (concat current "/made-with") directory))))))

(ert-deftest qwen-companion-environment-test-uv ()
  "When there is uv, it makes the environment, and pip is not asked."
  (qwen-companion-environment-test--with "exit 0" "exit 1"
    (write-region "#!/bin/sh
echo \"$*\" >>\"$0-was-told\"
case \"$1\" in venv) mkdir -p \"$4/bin\" && cp \"$3\" \"$4/bin/python\";; esac
" nil "bin/uv" nil 'silent)
    (set-file-modes "bin/uv" #o755)
    (let ((find (symbol-function 'executable-find))
          (uv (expand-file-name "bin/uv")))
      (cl-letf (((symbol-function 'executable-find)
                 (lambda (name &rest arguments)
                   (if (equal name "uv") uv (apply find name arguments)))))
        (should (string-match-p "environment is ready"
                                (qwen-companion-environment-test--install)))))
    (should (string-match-p
             "\\`venv --python .*/bin/python3 .*\npip install --python .* --require-hashes .*requirements\\.lock\n\\'"
             (qwen-companion-test-file-text "bin/uv-was-told")))))

(ert-deftest qwen-companion-environment-test-an-update ()
  "After an update of the package, its new list of packages is installed.
Python and pip are the real ones, with a directory of wheels and no index."
  (qwen-companion-test-with-files '(("python/requirements.lock" "small==1.0"))
    (make-directory "wheels")
    (let* ((python (executable-find qwen-companion-python))
           (qwen-companion-python nil)
           (directory (expand-file-name "environments/"))
           (qwen-companion-backend-directory directory)
           (qwen-companion-environment-source (expand-file-name "python/"))
           (process-environment
            (append (list "PIP_CONFIG_FILE=/dev/null" "PIP_NO_INDEX=1"
                          (concat "PIP_FIND_LINKS=" (expand-file-name "wheels")))
                    process-environment))
           (find (symbol-function 'executable-find)))
      (qwen-companion-environment-test--make
       (file-name-nondirectory (qwen-companion-environment-test--current)))
      (with-temp-buffer
        (should (eql 0 (call-process python nil t nil "-c" "
import hashlib, zipfile
name, info = 'wheels/small-2.0-py3-none-any.whl', 'small-2.0.dist-info'
with zipfile.ZipFile(name, 'w') as wheel:
    wheel.writestr('small.py', 'version = 2.0')
    wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\\nName: small\\nVersion: 2.0\\n')
    wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(f'{info}/RECORD', f'small.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n')
with open(name, 'rb') as wheel:
    print(f'small==2.0 --hash=sha256:{hashlib.sha256(wheel.read()).hexdigest()}')
")))
        (write-region nil nil "python/requirements.lock" nil 'silent))
      (should (qwen-companion-environment-outdated-p))
      (cl-letf (((symbol-function 'executable-find)
                 (lambda (name &rest arguments)
                   (pcase name
                     ("uv" nil)
                     ("python3" python)
                     (_ (apply find name arguments))))))
        (save-window-excursion
          (qwen-companion-environment-test--install))
        (should-not (qwen-companion-environment-outdated-p))
        (with-temp-buffer
          (call-process (qwen-companion-environment-python) nil t nil "-c" "
import importlib.util, small
print(small.version, importlib.util.find_spec('pip'))")
          (should (equal "2.0 None\n" (buffer-string)))))
      (should (= 1 (length (directory-files directory nil "venv")))))))

(ert-deftest qwen-companion-environment-test-uninstall ()
  (qwen-companion-environment-test--with "exit 0" "exit 0"
    (should-error (qwen-companion-uninstall) :type 'user-error)
    (qwen-companion-environment-test--make "venv-0123456789ab")
    ;; Of an installation that was killed.
    (qwen-companion-environment-test--make "venv-0123456789ab.part-x")
    (make-directory "state/qwen-companion/journal" t)
    (qwen-companion-test-answering nil
      (qwen-companion-uninstall)
      (should (file-directory-p directory)))
    (qwen-companion-test-answering t
      (let ((qwen-companion-mode t))
        (should-error (qwen-companion-uninstall) :type 'user-error))
      (qwen-companion-uninstall)
      (should-not (file-exists-p directory))
      (should-not (directory-files "state" nil "qwen")))))

(ert-deftest qwen-companion-environment-test-uninstall-revokes-the-token ()
  "The question says all that goes, and Qwen Code is told to revoke the token."
  (qwen-companion-environment-test--with "exit 0" "exit 0"
    (dolist (fails '(nil t))
      (make-directory "state/qwen-companion" t)
      (write-region "{\"id\": \"c_1\", \"token\": \"qpc_0\"}" nil "state/qwen-companion/controller.json")
      (write-region (format "#!/bin/sh\necho \"$*\" >%s\nexit %d\n"
                            (expand-file-name "told") (if fails 1 0))
                    nil "bin/qwen")
      (set-file-modes "bin/qwen" #o755)
      (let ((qwen-companion-qwen-command '("qwen")))
        (let ((said (qwen-companion-test-messages
                      (qwen-companion-test-answering
                          (lambda (question)
                            (should (string-match-p "plans, drafts.*revoke the token" question))
                            t)
                        (qwen-companion-uninstall))
                      (let ((process (get-process "qwen-companion-revoke")))
                        (while (and process (process-live-p process))
                          (accept-process-output process 1))
                        (accept-process-output nil 0.01)))))
          (should-not (directory-files "state" nil "qwen"))
          (should (equal "sessions controllers remove c_1\n"
                         (with-temp-buffer (insert-file-contents "told") (buffer-string))))
          (should (eq fails (and (string-match-p "not revoked.*controllers remove c_1" said) t))))))))

(ert-deftest qwen-companion-environment-test-no-place ()
  (qwen-companion-test-with-files '(("file" ""))
    (let ((qwen-companion-backend-directory (expand-file-name "file/below/")))
      (qwen-companion-test-refused "file/below/.*qwen-companion-backend-directory"
        (qwen-companion-install-backend)))))

(provide 'qwen-companion-environment-test)
;;; qwen-companion-environment-test.el ends here
