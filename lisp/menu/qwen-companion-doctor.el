;;; qwen-companion-doctor.el --- Check the connection between Emacs and CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-doctor' checks everything between this Emacs and a CLI: the
;; Lisp part here, the rest in a Python process of its own
;; (`qwen_companion/doctor.py'), which works without the backend.  The report
;; has no secret and no content of a file, so that it can be sent to others.
;; `qwen-companion-report-bug' adds what the inspector has, without names of
;; files.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-context)
(require 'qwen-companion-environment)
(require 'qwen-companion-header)
(require 'qwen-companion-inspector)
(require 'qwen-companion-journal)
(require 'qwen-companion-messages)
(require 'qwen-companion-places)
(require 'qwen-companion-problems)
(require 'qwen-companion-programs)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

(declare-function json-encode "json" (object))
(declare-function qwen-companion-daemon-description "qwen-companion-daemon" ())
(declare-function qwen-companion-daemon-state "qwen-companion-daemon" ())

(defconst qwen-companion-doctor--buffer-name "*qwen-companion doctor*")

(defconst qwen-companion-doctor--limit 60
  "Seconds for which `qwen-companion-doctor-batch' waits for the Python part.")

(defvar-local qwen-companion-doctor--checks nil
  "The checks of the report, newest first.
Each is (STATUS NAME TEXT REMEDY COMMAND), of strings.  REMEDY may be
empty, and COMMAND, the shell command in it, may be empty or missing.")

(defvar-local qwen-companion-doctor--process nil
  "The process that makes the rest of the checks, nil when it has ended.")

(defvar-local qwen-companion-doctor--finished-function #'ignore
  "Function to call, in the buffer of the report, when it is whole.")

;;; Checks of Emacs

(defun qwen-companion-doctor--emacs ()
  "Return the results for Emacs and the libraries."
  (let ((sources (cl-remove-if
                  (lambda (file)
                    (or (string-match-p "-\\(?:autoloads\\|loaddefs\\|pkg\\)\\.el\\'" file)
                        (let ((compiled (concat file "c")))
                          (and (file-exists-p compiled)
                               (not (file-newer-than-file-p file compiled))))))
                  (directory-files-recursively
                   (file-name-directory (locate-library "qwen-companion"))
                   "\\`qwen-companion[^/]*\\.el\\'" nil
                   (lambda (folder)
                     ;; Tests and the like of a checkout are compiled elsewhere.
                     (string-match-p "/lisp\\(?:/[a-z]+\\)?\\'" folder))))))
    (list (if (version< emacs-version "28.1")
              (list "fail" "Emacs" (concat emacs-version " is too old") "use Emacs 28.1 or later")
            (list "pass" "Emacs" (format "%s, %s" emacs-version system-configuration) ""))
          (if (locate-library "epc")
              (list "pass" "Library epc" (locate-library "epc") "")
            (list "fail" "Library epc" "missing" "M-x package-install RET epc, from MELPA"))
          (if (qwen-companion-environment-updated-p)
              (list "warn" "Running version" "the package was updated since it was loaded"
                    (qwen-companion-environment-restart))
            (list "pass" "Running version" "that on the disk" ""))
          (if sources
              (list "warn" "Compiled files"
                    (format "%d of ours are missing or older than their source, like %s"
                            (length sources) (file-name-nondirectory (car sources)))
                    (format "M-x byte-recompile-directory RET %s"
                            (abbreviate-file-name (file-name-directory (car sources)))))
            (list "pass" "Compiled files" "up to date" "")))))

(defun qwen-companion-doctor--checkers ()
  "Return the check of Flymake's checkers in all buffers."
  (if-let* ((disabled (cl-loop for buffer in (buffer-list)
                               append (with-current-buffer buffer
                                        (qwen-companion-problems-disabled)))))
      (list "warn" "Checkers"
            (concat "disabled by Flymake: " (string-join (seq-uniq disabled) ", "))
            (concat (if (boundp 'trusted-content)
                        "`trusted-content' lets Emacs compile Lisp of yours; "
                      "")
                    "M-x flymake-switch-to-log-buffer has the reason"))
    (list "pass" "Checkers" "Flymake has disabled none" "")))

(defun qwen-companion-doctor--companion ()
  "Return the results for the mode, its roots, sessions and context."
  (append
   (list
    (pcase (qwen-companion-state)
      ('ready (list "pass" "Companion" "running" ""))
      ('off (list "warn" "Companion" "the mode is off" "M-x qwen-companion-mode"))
      ('starting (list "warn" "Companion" "starting" "try again in a moment"))
      (_ (list "fail" "Companion" (or (qwen-companion-backend-failure) "not running")
               "see M-x qwen-companion-log"))))
   (when (eq 'ready (qwen-companion-state))
     (append
      (list
       (if-let* ((reason (qwen-companion-roots-unreachable)))
           (list "fail" "Workspace roots" reason "open a file of a project")
         (list "pass" "Workspace roots"
               (mapconcat #'abbreviate-file-name (qwen-companion-roots-published) ", ") ""))
       (qwen-companion-doctor--sessions)
       (qwen-companion-doctor--context))
      (qwen-companion-doctor--places)))
   (mapcar (lambda (problem)
             (list "warn" "Journal" problem "mend what the reason names"))
           (qwen-companion-journal-problems))
   (when (and (featurep 'qwen-companion-daemon)
              (not (eq 'off (qwen-companion-daemon-state))))
     (list (list (if (eq 'connected (qwen-companion-daemon-state)) "pass" "fail")
                 "Daemon"
                 (format "%s: %s" (qwen-companion-daemon-state)
                         (or (qwen-companion-daemon-description) ""))
                 "")))))

(defun qwen-companion-doctor--places ()
  "Return the check of each place whose CLIs are served."
  (mapcar (lambda (place)
            (let* ((message (qwen-companion-places-message place))
                   (state (qwen-companion-place-state message)))
              (if (eq state 'ready)
                  (list "pass" "CLIs elsewhere" (format "%s is served" place) "")
                (list "warn" "CLIs elsewhere"
                      (format "%s is not served: %s" place
                              (qwen-companion-untrusted-text
                               (or (qwen-companion-place-reason message) "connecting")))
                      "when that is mended, M-x qwen-companion-run there tries again"))))
          (qwen-companion-places)))

(defun qwen-companion-doctor--sessions ()
  "Return the check of the connected CLIs."
  (let ((sessions (qwen-companion-backend-sessions)))
    (if sessions
        (list "pass" "Connected CLIs"
              (mapconcat (lambda (session)
                           (qwen-companion-untrusted-text
                            (format "%s %s in %s"
                                    (qwen-companion-session-client session)
                                    (qwen-companion-session-version session)
                                    (or (qwen-companion-session-directory session)
                                        "an unknown directory"))))
                         sessions ", ")
              "")
      (list "warn" "Connected CLIs" "none" "M-x qwen-companion-run, or /ide enable in a CLI"))))

(defun qwen-companion-doctor--context ()
  "Return the check of the last context, without file names."
  (let ((sent (qwen-companion-context-sent)))
    (if (not sent)
        (list "warn" "Context" "nothing has been sent" "visit a file of the project")
      (list "pass" "Context"
            (format "sent: open files %d, current ones %d"
                    (length (plist-get sent :files))
                    (if (plist-get sent :active) 1 0))
            ""))))

(defun qwen-companion-doctor--terminals ()
  "Return the live terminals with CLIs, as a vector for `json-encode'."
  (let ((connected (mapcar #'qwen-companion-terminal-session-buffer
                           (qwen-companion-backend-sessions))))
    (cl-loop for buffer in (qwen-companion-terminal-buffers)
             for process = (get-buffer-process buffer)
             for directory = (buffer-local-value 'qwen-companion-terminal-directory buffer)
             when (and (process-live-p process)
                       (process-id process)
                       (qwen-companion-backend-unicode-p directory))
             collect (list (cons 'name (buffer-name buffer))
                           (cons 'pid (process-id process))
                           (cons 'directory directory)
                           (cons 'connected (if (memq buffer connected) t :json-false)))
             into terminals
             finally return (vconcat terminals))))

;;; The rest

(defun qwen-companion-doctor--request ()
  "Return the input of the Python part, as JSON."
  (require 'json)
  (json-encode
   (list (cons 'editor_pid (emacs-pid))
         ;; json.el writes nil as null.
         (cons 'starting (if (eq 'starting (qwen-companion-state)) t :json-false))
         (cons 'port (and (eq 'ready (qwen-companion-state))
                          (qwen-companion-backend-port)))
         (cons 'roots (vconcat (qwen-companion-roots-published)))
         (cons 'terminals (qwen-companion-doctor--terminals)))))

(defun qwen-companion-doctor--start ()
  "Start the Python part, whose results are added to the current buffer."
  (let ((python (qwen-companion-environment-python))
        (buffer (current-buffer)))
    (if (not python)
        (qwen-companion-doctor--add
         (list "fail" "Python" "there is no interpreter" "install Python 3.10 or later"))
      (let ((errors (generate-new-buffer " *qwen-companion doctor errors*" t))
            (process-environment (default-value 'process-environment)))
        (setq qwen-companion-doctor--process
              (qwen-companion-programs-start
               :name "qwen-companion-doctor" :noquery t :coding 'utf-8
               :connection-type 'pipe
               :command (qwen-companion-programs-python
                         python qwen-companion-environment-source "qwen_companion.doctor")
               :stderr errors
               :filter (lambda (process output)
                         (qwen-companion-doctor--filter process output buffer))
               :sentinel (lambda (process _event)
                           (qwen-companion-doctor--ended process buffer errors))))
        (set-process-sentinel (get-buffer-process errors) #'ignore)
        ;; A process that ends at once reads nothing; its sentinel reports that.
        (ignore-errors
          (process-send-string qwen-companion-doctor--process
                               (concat (qwen-companion-doctor--request) "\n"))
          (process-send-eof qwen-companion-doctor--process))))))

(defun qwen-companion-doctor--filter (process output buffer)
  "Add the whole lines of OUTPUT of PROCESS to the report in BUFFER."
  (let* ((lines (split-string (concat (process-get process 'rest) output) "\n")))
    (process-put process 'rest (car (last lines)))
    (qwen-companion-buffers-when-live buffer
      (dolist (line (butlast lines))
        (qwen-companion-doctor--add (car (read-from-string line)))))))

(defun qwen-companion-doctor--ended (process buffer errors)
  "Finish the report in BUFFER when PROCESS, which wrote ERRORS, has ended."
  (unless (process-live-p process)
    (let ((said (or (qwen-companion-buffers-when-live errors
                      (prog1 (string-trim (buffer-string)) (kill-buffer)))
                    "")))
      (qwen-companion-buffers-when-live buffer
        (when (eq process qwen-companion-doctor--process)
          (setq qwen-companion-doctor--process nil)
          (unless (eql 0 (process-exit-status process))
            (qwen-companion-doctor--add
             (list "fail" "Python part"
                   (concat "the checks ended early"
                           (unless (string-empty-p said)
                             (concat ": " (car (last (split-string said "\n"))))))
                   (qwen-companion-environment-remedy))))
          (qwen-companion-doctor--show)
          (funcall qwen-companion-doctor--finished-function))))))

;;; Places

(defun qwen-companion-doctor--check-place ()
  "Check the place of the current directory, if it is at one."
  (when-let* ((place (file-remote-p default-directory)))
    (if (qwen-companion-places-message place)
        (let ((buffer (current-buffer)))
          (qwen-companion-backend-request
           'check-place
           (list :place place :program (car qwen-companion-qwen-command))
           (lambda (answer)
             (qwen-companion-buffers-when-live buffer
               (qwen-companion-doctor--add-place-checks place answer)))))
      (qwen-companion-doctor--add
       (list "warn" (qwen-companion-places-label place) "its CLIs are not served"
             "M-x qwen-companion-serve-place")))))

(defun qwen-companion-doctor--add-place-checks (place answer)
  "Add the message ANSWER about PLACE, nil if there is none, to the report."
  (dolist (check (or (mapcar #'read (qwen-companion-place-checks-lines answer))
                     (list (list "fail" "reach" "no answer" "M-x qwen-companion-remote-retry"))))
    (setf (nth 1 check) (format "%s %s" (qwen-companion-places-label place) (nth 1 check)))
    ;; An earlier report may have asked too.
    (unless (cl-find (nth 1 check) qwen-companion-doctor--checks :key #'cadr :test #'equal)
      (push check qwen-companion-doctor--checks)))
  (qwen-companion-doctor--show))

;;; The report

(defun qwen-companion-doctor--add (check)
  "Add CHECK, a result, to the report in the current buffer."
  (push check qwen-companion-doctor--checks)
  (qwen-companion-doctor--show))

(defun qwen-companion-doctor--failed-p ()
  "Return non-nil when a check of the current report has failed."
  (assoc "fail" qwen-companion-doctor--checks))

(defun qwen-companion-doctor--show ()
  "Rewrite the report in the current buffer."
  (let ((inhibit-read-only t)
        (line (line-number-at-pos)))
    (erase-buffer)
    (pcase-dolist (`(,status ,name ,text ,remedy . ,command)
                   (reverse qwen-companion-doctor--checks))
      (insert (propertize (format "%-5s" status)
                          'face (pcase status
                                  ("pass" 'success) ("warn" 'warning) (_ 'error)))
              (propertize (qwen-companion-untrusted-text name) 'face 'bold)
              ": " (qwen-companion-untrusted-text text) "\n")
      (unless (string-empty-p remedy)
        (insert "     -> ")
        (qwen-companion-doctor--insert-remedy remedy (car command))
        (insert "\n")))
    (insert (cond (qwen-companion-doctor--process "\nChecking...\n")
                  ((qwen-companion-doctor--failed-p) "\nSomething failed, see above.\n")
                  (t "\nNothing failed.\n")))
    (set-buffer-modified-p nil)
    (goto-char (point-min))
    (forward-line (1- line))))

(defun qwen-companion-doctor--insert-remedy (remedy command)
  "Insert REMEDY, with a button for the shell COMMAND or Emacs command in it."
  (let ((start (point)))
    (insert (qwen-companion-untrusted-text remedy))
    (cond
     ((not (member command '(nil "")))
      (make-text-button start (point)
                        'action (lambda (_) (qwen-companion-doctor--run command))
                        'follow-link t
                        'help-echo "Run this shell command"))
     ((string-match "M-x \\(qwen-companion-[a-z-]+\\|restart-emacs\\)" remedy)
      (let ((command (intern (match-string 1 remedy))))
        (make-text-button (+ start (match-beginning 0)) (+ start (match-end 0))
                          'action (lambda (_) (call-interactively command))
                          'follow-link t
                          'help-echo (format "Run `%s'" command)))))))

(defun qwen-companion-doctor--run (command)
  "Run the shell COMMAND in the home directory, then make the report anew.
Its output goes to a buffer of its own."
  (let* ((report (current-buffer))
         (default-directory (expand-file-name "~/"))
         (buffer (qwen-companion-programs-compile-for-user command "*qwen-companion remedy*")))
    (with-current-buffer buffer
      (add-hook 'compilation-finish-functions
                (lambda (&rest _)
                  ;; The files for CLIs are written again.
                  (when (qwen-companion-backend-connected-p)
                    (qwen-companion-roots-resend))
                  (qwen-companion-buffers-when-live report
                    (qwen-companion-doctor--revert)))
                nil t))))

(defun qwen-companion-doctor-copy ()
  "Copy the report, for a bug report."
  (interactive nil qwen-companion-doctor-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-doctor-mode)
  (kill-new (buffer-substring-no-properties (point-min) (point-max)))
  (message "Copied the report (without secrets and contents of files)"))

(qwen-companion-header-define-keys qwen-companion-doctor-mode "Doctor"
  (refresh revert-buffer "Check Again" "again")
  (copy qwen-companion-doctor-copy "Copy the Report" "copy")
  ("TAB" forward-button "Next Remedy" "next remedy")
  (help qwen-companion-header-help nil))

(define-derived-mode qwen-companion-doctor-mode special-mode "Doctor"
  "Major mode of the report on all that a CLI needs to connect.
Info node `(qwen-companion)When something does not work' is about it.

\\{qwen-companion-doctor-mode-map}"
  :interactive nil
  (qwen-companion-header-set-up-mode)
  (setq-local revert-buffer-function #'qwen-companion-doctor--revert
              word-wrap t)
  (setq header-line-format
        '((:eval (qwen-companion-header-line "Doctor" (qwen-companion-header-mode-keys)))))
  (buffer-disable-undo))

(defun qwen-companion-doctor--revert (&rest _)
  "Make the current report anew."
  (when (process-live-p qwen-companion-doctor--process)
    (delete-process qwen-companion-doctor--process))
  (setq qwen-companion-doctor--finished-function #'ignore
        qwen-companion-doctor--checks
        (reverse (append (qwen-companion-doctor--emacs)
                         (list (qwen-companion-doctor--checkers))
                         (qwen-companion-doctor--companion))))
  (qwen-companion-doctor--start)
  (qwen-companion-doctor--check-place)
  (qwen-companion-doctor--show))

(defun qwen-companion-doctor--report ()
  "Return the buffer of a new report, which may still be incomplete."
  (let ((directory default-directory))
    (with-current-buffer (qwen-companion-buffers-in-mode qwen-companion-doctor--buffer-name
                                                         #'qwen-companion-doctor-mode)
      ;; That of a place has it checked too.
      (setq default-directory directory)
      (qwen-companion-doctor--revert)
      (current-buffer))))

;;;###autoload
(defun qwen-companion-doctor ()
  "Check everything between this Emacs and a CLI, and suggest remedies.
\\<qwen-companion-doctor-mode-map>\\[qwen-companion-doctor-copy] copies the report for a bug report."
  (interactive)
  (pop-to-buffer (qwen-companion-doctor--report)))

;;; For a bug report

(defun qwen-companion-doctor--redact (text)
  "Return TEXT with other names for projects, the home directory and the host."
  (let ((case-fold-search nil)
        (directories (seq-uniq
                      (mapcar #'directory-file-name
                              (delq nil (append (qwen-companion-roots-published)
                                                (mapcar #'qwen-companion-session-directory
                                                        (qwen-companion-backend-sessions))))))))
    (cl-loop for directory in (cl-sort directories #'> :key #'length)
             for number from 1
             for name = (file-name-nondirectory directory)
             do (dolist (written (list (abbreviate-file-name directory) directory))
                  (setq text (string-replace written (format "<project %d>" number) text)))
             unless (string-empty-p name)
             do (setq text (replace-regexp-in-string
                            (concat "\\_<" (regexp-quote name) "\\_>")
                            (format "<project %d>" number) text t t)))
    (replace-regexp-in-string
     (concat "\\_<" (regexp-quote (system-name)) "\\_>") "<host>"
     (string-replace (directory-file-name (expand-file-name "~/")) "~" text) t t)))

(defun qwen-companion-doctor--complete (report)
  "Add the doctor's results and the inspector's summary to the buffer REPORT."
  (with-current-buffer (qwen-companion-doctor--report)
    (let ((finish (lambda ()
                    (let ((checks (buffer-string)))
                      (qwen-companion-buffers-when-live report
                        (save-excursion
                          (goto-char (point-max))
                          (insert (qwen-companion-doctor--redact
                                   (substring-no-properties
                                    (concat checks "\n"
                                            (qwen-companion-inspector-summary)))))))))))
      (if qwen-companion-doctor--process
          (setq qwen-companion-doctor--finished-function finish)
        (funcall finish)))))

;;;###autoload
(defun qwen-companion-report-bug ()
  "Begin a bug report in a buffer of its own, for you to complete and send.
It has the checks of `qwen-companion-doctor' and the time and size of each
CLI's context, but no secrets, texts, or names of project files."
  (interactive)
  (unless (eq 'off (qwen-companion-state))
    (qwen-companion-inspector-open))
  (pop-to-buffer (generate-new-buffer "*qwen-companion bug report*"))
  (text-mode)
  (insert "What I did:\n\n\nWhat happened:\n\n\nWhat I expected:\n\n\n")
  (goto-char (point-min))
  (forward-line)
  ;; After M-x, Emacs 28 searches a shorter name of the command for some
  ;; seconds, in which it would answer no check.
  (run-at-time 0.1 nil #'qwen-companion-doctor--complete (current-buffer)))

(defun qwen-companion-doctor-batch ()
  "Print the report, and exit with status 1 if a check has failed.
For `emacs --batch'."
  (with-current-buffer (qwen-companion-doctor--report)
    (with-timeout (qwen-companion-doctor--limit)
      (while qwen-companion-doctor--process
        (accept-process-output qwen-companion-doctor--process)))
    (princ (buffer-string))
    (kill-emacs (if (qwen-companion-doctor--failed-p) 1 0))))

(provide 'qwen-companion-doctor)
;;; qwen-companion-doctor.el ends here
