;;; qwen-companion-backend-test.el --- Tests of the Python process and its supervision  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; These run the real process with the interpreter in
;; `qwen-companion-python', and fakes of it that fail.

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-backend-test--find (regexp)
  "Return the files with names that match REGEXP.
A directory that the process removes meanwhile is no error."
  (directory-files-recursively default-directory regexp nil t))

(defun qwen-companion-backend-test--token ()
  "Return the token that CLIs find in the discovery file."
  (with-temp-buffer
    (insert-file-contents (car (qwen-companion-backend-test--find "\\.lock\\'")))
    (goto-char (point-min))
    (plist-get (json-parse-buffer :object-type 'plist) :authToken)))

(defun qwen-companion-backend-test--files ()
  "Return the discovery files and private directories there are."
  (append (qwen-companion-backend-test--find "\\.lock\\'\\|\\.json\\'")
          (file-expand-wildcards "qwen-companion-*")))

(defun qwen-companion-backend-test--wait-ready ()
  "Wait until CLIs are served and the discovery files are there."
  (qwen-companion-test-wait-for
   (and (eq 'ready (qwen-companion-state))
        qwen-companion-roots--answer
        (= 1 (length (qwen-companion-backend-test--find "\\.lock\\'"))))))

(defun qwen-companion-backend-test--start ()
  "Turn the mode on and wait until CLIs are served."
  (qwen-companion-mode 1)
  (qwen-companion-backend-test--wait-ready))

(defun qwen-companion-backend-test--wait-another (process)
  "Wait until another process than PROCESS is started."
  (qwen-companion-test-wait-for (not (eq process (qwen-companion-test-process)))))

(defun qwen-companion-backend-test--kill ()
  "Kill the process and wait until another is started."
  (let ((process (qwen-companion-test-process)))
    (signal-process process 'KILL)
    (qwen-companion-backend-test--wait-another process)))

(defun qwen-companion-backend-test--fake-python (script)
  "Return the name of a new program made of the shell SCRIPT.
Where its exit status matters it has to read a line first: Emacs does not
learn that of a process which ends before Emacs has written to it."
  (let ((file (expand-file-name "fake-python")))
    (write-region (concat "#!/bin/sh\n" script "\n") nil file nil 'silent)
    (set-file-modes file #o700)
    file))

(defun qwen-companion-backend-test--real-python ()
  "Return the interpreter of the tests, for a shell."
  (shell-quote-argument (executable-find qwen-companion-python)))

(defun qwen-companion-backend-test--failure (python)
  "Start the mode with PYTHON, wait for the failure; return the messages."
  (let ((qwen-companion-python python))
    (qwen-companion-test-messages
      (qwen-companion-mode 1)
      (qwen-companion-test-wait-for (eq 'error (qwen-companion-state))))))

(defun qwen-companion-backend-test--check-nothing-left ()
  "Check that a failed start has left nothing, but for its explanation."
  (should (string-match-p "Qwen:error" (qwen-companion-test-lighter)))
  (qwen-companion-test-wait-for (null (qwen-companion-test-processes)))
  (should-not (qwen-companion-backend-test--files))
  (should-not qwen-companion-backend--connection)
  (should-not (cadr (qwen-companion-test-secrets)))
  (should-not (getenv "QWEN_CODE_IDE_SERVER_PORT")))

(ert-deftest qwen-companion-backend-test-starts-serves-and-stops ()
  (qwen-companion-test-with-process
    (qwen-companion-mode 1)
    (should (eq 'starting (qwen-companion-state)))
    (should (equal " Qwen:starting" (qwen-companion-test-lighter)))
    (qwen-companion-backend-test--wait-ready)
    (should (equal " Qwen:no-root" (qwen-companion-test-lighter)))
    (should (getenv "QWEN_CODE_IDE_SERVER_PORT"))
    (qwen-companion-mode -1)
    (should (eq 'off (qwen-companion-state)))
    (should-not (getenv "QWEN_CODE_IDE_SERVER_PORT"))
    (qwen-companion-test-wait-for (null (qwen-companion-backend-test--files)))))

(ert-deftest qwen-companion-backend-test-no-secret-is-visible ()
  "No secret is in the process list, the environment, messages or the log."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((places
           (list (process-command (qwen-companion-test-process))
                 (default-value 'process-environment)
                 (qwen-companion-test-buffer-text (messages-buffer))
                 (qwen-companion-test-buffer-text "*qwen-companion log*"))))
      (should (equal (qwen-companion-backend-test--token) (car (qwen-companion-test-secrets))))
      (dolist (secret (qwen-companion-test-secrets))
        (should (string-match-p "\\`[0-9a-f]\\{64\\}\\'" secret))
        (should-not (string-match-p secret (format "%S" places)))))))

(ert-deftest qwen-companion-backend-test-no-secret-in-a-buffer ()
  "Internal buffers for decoding text that is not ASCII hold no secret either."
  (qwen-companion-test-with-process
    (make-directory "naïve 雪 😀/.git" t)
    (qwen-companion-backend-test--start)
    (let ((root (expand-file-name "naïve 雪 😀")))
      (find-file-noselect (expand-file-name "a.txt" root))
      (qwen-companion-roots-update)
      (qwen-companion-test-wait-for (qwen-companion-roots-published-p root)))
    (dolist (secret (qwen-companion-test-secrets))
      (should-not (qwen-companion-test-buffers-with secret)))))

(ert-deftest qwen-companion-backend-test-changes-of-sessions ()
  "A message about some sessions leaves the others and their order alone."
  (qwen-companion-test-with-sessions '((:id "a" :client "x") (:id "b" :client "y") (:id "c"))
    (let ((before (qwen-companion-backend-sessions)))
      (qwen-companion-backend-on-sessions
       '(:sessions ((:id "d") (:id "b" :client "z")) :gone ("c" "e")))
      (should (equal '((:id "a" :client "x") (:id "b" :client "z") (:id "d"))
                     (qwen-companion-backend-sessions)))
      (should (equal '((:id "a" :client "x") (:id "b" :client "y") (:id "c")) before)))))

(ert-deftest qwen-companion-backend-test-killed-process-is-replaced ()
  "The port, the token and so the discovery files stay the same."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((port (qwen-companion-backend-port))
          (token (qwen-companion-backend-test--token))
          (spool (qwen-companion-backend-spool)))
      (qwen-companion-backend-test--kill)
      (qwen-companion-backend-test--wait-ready)
      (should (equal port (qwen-companion-backend-port)))
      (should (equal token (qwen-companion-backend-test--token)))
      ;; A cleaner of temporary files has taken the private directory: a restart makes another one.
      (delete-directory spool t)
      (qwen-companion-backend-test--kill)
      (qwen-companion-backend-test--wait-ready)
      (should-not (equal spool (qwen-companion-backend-spool)))
      (should (file-directory-p (qwen-companion-backend-spool))))))

(defvar project-list-file)

(ert-deftest qwen-companion-backend-test-killing-the-buffers-of-a-project-keeps-the-connection ()
  "By `project-kill-buffers' where the mode was turned on, or one by one."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((process (qwen-companion-test-process))
          (connection (get-buffer " *qwen-companion connection*"))
          (project-list-file (expand-file-name "projects")))
      (find-file-noselect "a.txt")
      (qwen-companion-test-silent (project-kill-buffers t))
      (should-not (get-buffer "a.txt"))
      (qwen-companion-test-said "connection to the backend" (kill-buffer connection))
      (should (buffer-live-p connection))
      (should (eq process (qwen-companion-test-process)))
      (qwen-companion-mode -1)
      (should-not (buffer-live-p connection)))))

(ert-deftest qwen-companion-backend-test-a-call-that-fails-is-told ()
  (qwen-companion-test-with-process
    (let* (failed
           (qwen-companion-backend-call-failed-functions
            (list (lambda (method payload) (push (cons method payload) failed))))
           (payload (list :id "x" :outcome 'accepted :text-file (expand-file-name "gone"))))
      (qwen-companion-backend-test--start)
      (should (memq #'qwen-companion-proposal-on-call-failed
                    qwen-companion-backend-call-failed-functions))
      (qwen-companion-backend-call 'outcome payload)
      (qwen-companion-test-wait-for failed)
      (should (equal (list (cons 'outcome payload)) failed)))))

(ert-deftest qwen-companion-backend-test-no-temporary-directory ()
  (qwen-companion-test-with-process
    (let* ((temporary-file-directory (expand-file-name "gone/"))
           (said (qwen-companion-backend-test--failure qwen-companion-python)))
      (should (string-match-p
               (concat (regexp-quote (abbreviate-file-name temporary-file-directory))
                       ".*No such file or directory.*TMPDIR")
               said))
      (should-not (string-match-p "prefix" said)))
    (qwen-companion-backend-test--check-nothing-left)))

(ert-deftest qwen-companion-backend-test-a-long-temporary-directory ()
  "A TMPDIR too long for the name of a socket stops nothing; the port is kept."
  (qwen-companion-test-with-process
    (let ((temporary-file-directory
           (file-name-as-directory (expand-file-name (make-string 85 ?t)))))
      (make-directory temporary-file-directory)
      (qwen-companion-mode 1)
      (qwen-companion-backend-test--wait-ready)
      (should (process-live-p (qwen-companion-backend--server-reserve
                               qwen-companion-backend--server))))))

(ert-deftest qwen-companion-backend-test-a-text-half-written-goes ()
  "A file that a full disk cut off is deleted, which leaves its room to others."
  (qwen-companion-test-with-files nil
    (let ((qwen-companion-backend--server (qwen-companion-test-server :spool default-directory)))
      (cl-letf (((symbol-function 'write-region)
                 (lambda (_start _end file &rest _)
                   (signal 'file-error (list "Write error" "No space left on device" file)))))
        (should-error (qwen-companion-spool-write "x" 'utf-8-unix) :type 'file-error))
      (should-not (directory-files default-directory nil "\\`text-")))))

(ert-deftest qwen-companion-backend-test-port-is-kept ()
  "While no process has the port, nobody else gets it; afterwards they do."
  (skip-unless (eq system-type 'gnu/linux))
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (cl-flet ((take (port)
                (delete-process
                 (make-network-process
                  :name "squatter" :server t :host "127.0.0.1"
                  :family 'ipv4 :service port :noquery t))))
      (let ((port (qwen-companion-backend-port))
            (process (qwen-companion-test-process)))
        (dotimes (_ 2)
          (setq process (qwen-companion-test-process))
          (signal-process process 'KILL)
          ;; Nothing here lets Emacs notice, so no other process is started.
          (while (ignore-errors
                   (delete-process (open-network-stream "probe" nil "127.0.0.1" port))
                   t))
          (should-error (take port) :type 'file-error)
          (qwen-companion-backend-test--wait-another process)
          (qwen-companion-backend-test--wait-ready)
          (should (equal port (qwen-companion-backend-port))))
        (qwen-companion-mode -1)
        (qwen-companion-test-wait-for (null (qwen-companion-test-processes)))
        (take port)))))

(ert-deftest qwen-companion-backend-test-taken-port-is-given-up ()
  "When the port is gone after a kill, so are token and sessions.
Whoever has the port is shown the token by each CLI that reconnects."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((port (qwen-companion-backend-port))
          (token (qwen-companion-backend-test--token))
          (squatter (qwen-companion-test-take-port)))
      (unwind-protect
          (progn
            (qwen-companion-test-set-sessions '((:id "old" :protocol "2025-11-25" :client "c" :version "1")))
            (qwen-companion-backend-test--kill)
            (qwen-companion-test-wait-for (and (eq 'ready (qwen-companion-state)) (integerp (qwen-companion-backend-port))))
            (should-not (equal port (qwen-companion-backend-port)))
            (should-not (equal (process-contact squatter :service) (qwen-companion-backend-port)))
            (should-not (qwen-companion-backend-sessions))
            (qwen-companion-backend-test--wait-ready)
            (should-not (equal token (qwen-companion-backend-test--token)))
            (should (equal (qwen-companion-backend-test--token) (car (qwen-companion-test-secrets)))))
        (delete-process squatter)))))

(ert-deftest qwen-companion-backend-test-a-process-that-keeps-dying ()
  "It is given up, with nothing left that names its port or its token."
  (qwen-companion-test-with-process
    (let ((said
           (qwen-companion-test-messages
             (qwen-companion-test-with-restart-limit '(2 . 60)
               (qwen-companion-mode 1)
               (dotimes (_ 3)
                 (qwen-companion-backend-test--wait-ready)
                 (signal-process (qwen-companion-test-process) 'KILL)
                 (qwen-companion-test-wait-for (not (eq 'ready (qwen-companion-state)))))))))
      (should (eq 'error (qwen-companion-state)))
      (dolist (text (list said (qwen-companion-backend-failure)
                          (qwen-companion-test-buffer-text "*qwen-companion log*")))
        (should (string-match-p "ended with status 9" text))
        (should (string-match-p "`qwen-companion-mode' off and on" text)))
      (qwen-companion-backend-test--check-nothing-left))))

(ert-deftest qwen-companion-backend-test-dying-before-it-is-ready ()
  "A death before it is ready counts like one after it."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((port (qwen-companion-backend-port))
          (before (qwen-companion-test-process)))
      (dotimes (_ 3)
        (qwen-companion-backend-test--kill))
      (should-not (eq before (qwen-companion-test-process)))
      (qwen-companion-backend-test--wait-ready)
      (should (equal port (qwen-companion-backend-port))))))

(ert-deftest qwen-companion-backend-test-tries-again-by-itself ()
  "A failure is said once, and when it is over."
  (qwen-companion-test-with-process
    (let* ((qwen-companion-backend--restart-limit '(0 . 60))
           (qwen-companion-backend--retry-delay 0.05)
           (python (qwen-companion-backend-test--real-python))
           (qwen-companion-python
            (qwen-companion-backend-test--fake-python
             (format "echo >> %1$stries; test $(wc -l < %1$stries) -gt 3 && exec %2$s \"$@\"; read hello; exit 1"
                     default-directory python)))
           (failures nil)
           (qwen-companion-state-functions
            (cons (lambda (state)
                    (when (eq state 'error)
                      (push (qwen-companion-backend-failure) failures)))
                  qwen-companion-state-functions))
           (said (qwen-companion-test-messages (qwen-companion-backend-test--start))))
      (should (= 3 (length failures)))
      (should (equal 1 (1- (length (split-string said "ended with status 1")))))
      (should (string-match-p "running again$" said))
      (should-not (qwen-companion-backend-failure)))))

(ert-deftest qwen-companion-backend-test-off-while-a-call-is-handled ()
  "Nothing is said of an answer that nobody gets, be it off or its connection closed."
  (dolist (end (list (lambda () (qwen-companion-mode -1))
                     (lambda ()
                       (delete-process
                        (cl-find-if (lambda (process)
                                      (string-prefix-p "epc con" (process-name process)))
                                    (process-list))))))
    (qwen-companion-test-with-process
      (let* ((ended nil)
             (qwen-companion-state-functions
              (cons (lambda (_)
                      (when (and (not ended) (eq 'ready (qwen-companion-state)))
                        (setq ended t)
                        (funcall end)))
                    qwen-companion-state-functions)))
        (should-not
         (string-match-p "deferred error"
                         (qwen-companion-test-messages
                           (qwen-companion-mode 1)
                           (qwen-companion-test-wait-for ended)
                           (qwen-companion-test-wait-for
                            (null (bound-and-true-p deferred:queue))))))))))

(ert-deftest qwen-companion-backend-test-off-while-the-process-is-not-as-usual ()
  "Stopped, replaced or about to end, it is ended, and its files are removed."
  (pcase-dolist (`(,prepare . ,off)
                 (list (cons (lambda (process)
                               (signal-process process 'STOP)
                               (qwen-companion-test-wait-for (eq 'stop (process-status process))))
                             #'qwen-companion-mode)
                       (cons (lambda (_) (qwen-companion-backend-test--kill)) #'qwen-companion-mode)
                       ;; It has ended before it is told to.
                       (cons #'ignore
                             (lambda (argument)
                               (let ((continue (symbol-function 'continue-process)))
                                 (cl-letf (((symbol-function 'continue-process)
                                            (lambda (process)
                                              (funcall continue process)
                                              (signal-process process 'KILL)
                                              (qwen-companion-test-wait-for (not (process-live-p process))))))
                                   (qwen-companion-mode argument)))))))
    (qwen-companion-test-with-process
      (qwen-companion-backend-test--start)
      (let ((process (qwen-companion-test-process)))
        (funcall prepare process)
        (let ((stopped (eq 'stop (process-status process))))
          (funcall off -1)
          (should (eq 'off (qwen-companion-state)))
          (qwen-companion-test-wait-for (null (qwen-companion-test-processes)))
          (when stopped
            (should (equal 0 (process-exit-status process)))))
        (unless (eq prepare #'ignore)
          (should-not (qwen-companion-backend-test--files)))))))

(defun qwen-companion-backend-test--spinning-python ()
  "Return a Python with an event loop that spins forever after SIGUSR1."
  (qwen-companion-backend-test--fake-python
   (format "exec %s -c '
import runpy, signal, sys
def spin(*_):
    while True: pass
signal.signal(signal.SIGUSR1, spin)
sys.path.insert(0, sys.argv[-2])
runpy.run_module(\"qwen_companion\", run_name=\"__main__\", alter_sys=True)' \"$@\""
           (qwen-companion-backend-test--real-python))))

(ert-deftest qwen-companion-backend-test-a-process-that-hangs ()
  "Stopped, or in an endless loop: that is said, and it is replaced."
  (qwen-companion-test-with-process
    (should (>= 10 (qwen-companion-test-ping-seconds)))
    ;; Time for a busy machine: the next process must answer within it.
    (let ((qwen-companion-python (qwen-companion-backend-test--spinning-python)))
      (qwen-companion-test-with-ping-limit '(0.1 . 15)
        (qwen-companion-backend-test--start)
        (dolist (signal '(STOP USR1))
          (let ((port (qwen-companion-backend-port))
                (process (qwen-companion-test-process)))
            (qwen-companion-test-said "does not answer; starting a new one"
              (signal-process process signal)
              (qwen-companion-backend-test--wait-another process))
            (qwen-companion-backend-test--wait-ready)
            (should (equal port (qwen-companion-backend-port)))))))))

(ert-deftest qwen-companion-backend-test-a-busy-emacs-kills-no-process ()
  "An Emacs that reads no process, or only another one, kills none."
  (qwen-companion-test-with-process
    ;; Two seconds, for a busy machine, of the three below.
    (qwen-companion-test-with-ping-limit '(0.1 . 20)
      (qwen-companion-backend-test--start)
      (let ((other (make-pipe-process :name "other" :noquery t))
            (process (qwen-companion-test-process))
            (end (+ (float-time) 2)))
        (while (< (float-time) end))
        (dotimes (_ 30)
          (accept-process-output other 0.1 nil t))
        (delete-process other)
        ;; Until it has answered once more.
        (qwen-companion-test-wait-for-unanswered 0)
        (should (eq process (qwen-companion-test-process)))))))

(ert-deftest qwen-companion-backend-test-the-clock-is-set ()
  "No start counts as failed, and a process that hangs is still noticed."
  (qwen-companion-test-with-process
    (qwen-companion-test-with-ping-limit '(0.1 . 20)
      (qwen-companion-mode 1)
      (let ((process (qwen-companion-test-process)))
        (qwen-companion-test-set-clock 3600)
        (qwen-companion-backend-test--wait-ready)
        (qwen-companion-test-set-clock -3600)
        (should (eq process (qwen-companion-test-process)))
        (signal-process process 'STOP)
        ;; What the user does next.
        (qwen-companion-backend-call 'context nil)
        (qwen-companion-backend-test--wait-another process)
        (qwen-companion-backend-test--wait-ready)))))

(ert-deftest qwen-companion-backend-test-suspended-and-resumed ()
  "Both stop for longer than it takes to notice that a process hangs.
None is replaced, whichever goes on first, and nothing is said."
  (qwen-companion-test-with-process
    ;; Two seconds, for a busy machine, of the three below.
    (qwen-companion-test-with-ping-limit '(0.1 . 20)
      (qwen-companion-backend-test--start)
      (let* ((process (qwen-companion-test-process))
             (pids (list (emacs-pid) (process-id process)))
             (said
              (qwen-companion-test-messages
                (dolist (order (list pids (reverse pids)))
                  (let ((suspender
                         (start-process
                          "suspender" nil "sh" "-c"
                          (apply #'format "kill -STOP %d %d; sleep 3; kill -CONT %d; sleep 0.2; kill -CONT %d"
                                 (append pids order)))))
                    (qwen-companion-test-wait-for (not (process-live-p suspender)))
                    ;; Timers of Emacs go by the clock, which went on.
                    (qwen-companion-test-set-clock 28800))
                  (mapc #'qwen-companion-test-wait-for-unanswered '(0 1 0))))))
        (should (equal "" said))
        (should (eq process (qwen-companion-test-process)))
        (should (eq 'run (process-status process)))
        (should (eq 'ready (qwen-companion-state)))))))

(ert-deftest qwen-companion-backend-test-starts-that-fail ()
  "Each is said with its reason and the way out, and leaves nothing."
  (pcase-dolist (`(,script . ,reasons)
                 '((nil "no Python found as no-such-python")
                   ("read hello; echo 'qwen-companion: Python 3.9 here' >&2; exit 4"
                    "too old (.*Python 3\\.9 here" "3\\.10 or later")
                   ;; An interpreter without the packages: the real message.
                   ("exec %s -S \"$@\"" "lacks a package (.*epc" "M-x qwen-companion-install-backend")
                   ("read hello; echo 'ImportError: broken' >&2; exit 1"
                    "status 1 (ImportError: broken)" "M-x qwen-companion-log")
                   ("read hello; echo 1; exec sleep 60" "refused")
                   ("exec sleep 60" "not ready after")))
    (ert-info (script)
      (qwen-companion-test-with-process
        (let* ((real (qwen-companion-backend-test--real-python))
               (qwen-companion-backend--start-limit
                (if (equal script "exec sleep 60") '(0.1 . 3) qwen-companion-backend--start-limit))
               (said (qwen-companion-backend-test--failure
                      (if script
                          (qwen-companion-backend-test--fake-python (format script real))
                        "no-such-python"))))
          (dolist (reason reasons)
            (should (string-match-p reason said))))
        (qwen-companion-backend-test--check-nothing-left)
        ;; It can be turned off and on again.
        (qwen-companion-mode -1)
        (should-not (get-buffer "*qwen-companion log*"))
        (unless script
          (qwen-companion-backend-test--start))))))

(ert-deftest qwen-companion-backend-test-ready-when-published-and-serving ()
  "Where the mode line says that it is ready, terminals have the variables."
  (let ((published '(:port 4 :token "t" :roots ("/a") :reachable t
                     :environment (("QWEN_COMPANION_TEST_READY" "1"))))
        seen)
    (dolist (messages '((published serving) (serving published)))
      (let ((qwen-companion-backend--connection (qwen-companion-backend--make-connection))
            (qwen-companion-backend--server (qwen-companion-backend--make-server))
            (qwen-companion-backend--token nil)
            (qwen-companion-backend--state 'starting)
            (qwen-companion-roots--answer nil)
            (qwen-companion-state-functions
             (list (lambda (_state)
                     (push (qwen-companion-terminal--getenv "QWEN_COMPANION_TEST_READY") seen)))))
        (cl-letf (((symbol-function 'qwen-companion-backend--ping-later) #'ignore)
                  ((symbol-function 'qwen-companion-follow-update) #'ignore))
          (unwind-protect
              (dolist (message messages)
                (should (eq 'starting (qwen-companion-state)))
                (if (eq message 'published)
                    (qwen-companion--on-published published)
                  (qwen-companion-backend-on-serving nil)))
            (qwen-companion-terminal-restore-environment)))
        (should (eq 'ready (qwen-companion-state)))))
    (should (equal '("1" "1") seen))))

(ert-deftest qwen-companion-backend-test-package-found-missing-later ()
  "It is final though the process has been connected: there is one start."
  (qwen-companion-test-with-process
    (write-region "raise ModuleNotFoundError('broken', name='mcp_types')\n" nil
                  "mcp_types.py" nil 'silent)
    (let ((said (qwen-companion-backend-test--failure
                 (qwen-companion-backend-test--fake-python
                  (format "echo >> %1$stries
exec %2$s -c 'import runpy, sys
sys.path.insert(0, \"%1$s\")
sys.path.insert(0, sys.argv[-2])
runpy.run_module(\"qwen_companion\", run_name=\"__main__\", alter_sys=True)' \"$@\""
                          default-directory
                          (qwen-companion-backend-test--real-python))))))
      (should (string-match-p "lacks a package (.*mcp_types" said))
      (should (equal "\n" (qwen-companion-test-file-text "tries"))))
    (qwen-companion-backend-test--check-nothing-left)))

(ert-deftest qwen-companion-backend-test-the-log-can-be-killed ()
  "The buffer comes back with the next output of the process, which is not lost."
  (qwen-companion-test-with-process
    (let ((qwen-companion-python
           (qwen-companion-backend-test--fake-python
            (format "exec %s -c '
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os.write(2, b\"later\\n\"))
os.write(2, b\"early\\n\")
sys.stdin.read()'" (qwen-companion-backend-test--real-python)))))
      (qwen-companion-mode 1)
      (pcase-dolist (`(,signal ,text) '((nil "early\n") (USR1 "later\n")))
        (when signal
          (kill-buffer "*qwen-companion log*")
          (signal-process (qwen-companion-test-process) signal))
        (qwen-companion-test-wait-for
         (when-let* ((buffer (get-buffer "*qwen-companion log*")))
           (equal text (qwen-companion-test-buffer-text buffer)))))
      (should (process-live-p (qwen-companion-test-process))))))

(ert-deftest qwen-companion-backend-test-timers-have-the-file-name-handlers ()
  "A command may wait that has bound them to nil."
  (let ((file-name-handler-alist nil)
        (seen 'nothing))
    (run-at-time 0 nil (lambda () (setq seen file-name-handler-alist)))
    (qwen-companion-backend-wait (lambda () (not (eq seen 'nothing))) qwen-companion-test-limit)
    (should (equal (default-toplevel-value 'file-name-handler-alist) seen))))

(defun qwen-companion-backend-test--mode-state ()
  "Return the state that a minor mode may change, but for our variables, as texts."
  (append
   (cl-loop for (name . value) in (cl-remove-if-not #'consp (buffer-local-variables))
            ;; Those that are nil are as they were by default.
            when (and value
                      (not (memq name '(local-minor-modes buffer-undo-list
                                        font-lock-mode-set-explicitly)))
                      (not (string-prefix-p "qwen-companion-" (symbol-name name))))
            collect (format "%S: %S" name value))
   (mapcar (lambda (timer) (format "%S" (timer--function timer))) timer-idle-list)
   (cl-loop for name in '(qwen-companion-journal-changed-functions
                          qwen-companion-state-functions kill-emacs-hook)
            append (mapcar (lambda (function) (format "%S: %S" name function))
                           (default-value name)))))

(ert-deftest qwen-companion-backend-test-a-mode-turned-on-twice ()
  "That is the same as once, and off leaves nothing: for each minor mode."
  (qwen-companion-test-with-process
    (qwen-companion-backend-test--start)
    (let ((processes (process-list)))
      (qwen-companion-mode 1)
      (should (equal processes (process-list)))
      (should (eq 'ready (qwen-companion-state))))
    (qwen-companion-test-write "a.txt" "1\n2\n")
    (mapc #'require '(qwen-companion-ask qwen-companion-blame qwen-companion-kept-plans))
    (dolist (mode (delq 'qwen-companion-mode (copy-sequence minor-mode-list)))
      (when (string-prefix-p "qwen-companion-" (symbol-name mode))
        (ert-info ((symbol-name mode) :prefix "Mode: ")
          (with-current-buffer (find-file-noselect "a.txt")
            (let ((off (qwen-companion-backend-test--mode-state)))
              (funcall mode 1)
              (let ((on (qwen-companion-backend-test--mode-state)))
                (funcall mode 1)
                (should-not (cl-set-exclusive-or
                             on (qwen-companion-backend-test--mode-state) :test #'equal)))
              (funcall mode -1)
              (should-not (cl-set-exclusive-or
                           off (qwen-companion-backend-test--mode-state) :test #'equal)))
            (kill-buffer)))))))

(provide 'qwen-companion-backend-test)
;;; qwen-companion-backend-test.el ends here
