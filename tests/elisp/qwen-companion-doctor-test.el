;;; qwen-companion-doctor-test.el --- Tests of the doctor  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The report of an Emacs whose companion does not run, with the real Python
;; part, and without one.

;;; Code:

(require 'qwen-companion-doctor)
(require 'qwen-companion-test-helper)

(defmacro qwen-companion-doctor-test--report (&rest body)
  "Run BODY in a report after its checks have ended.
The checks find no CLI: starting each for its version takes most of the time,
and the tests of the Python part do it."
  (declare (indent 0) (debug t))
  `(let ((buffer (let ((process-environment (cons "PATH=/usr/bin:/bin" process-environment)))
                   (qwen-companion-doctor--report))))
     (unwind-protect
         (with-current-buffer buffer
           (qwen-companion-test-wait-for (not qwen-companion-doctor--process))
           ,@body)
       (kill-buffer buffer))))

(ert-deftest qwen-companion-doctor-test-mode-off ()
  "All that needs no companion is checked, and each problem names a remedy."
  (qwen-companion-doctor-test--report
    (let ((text (buffer-string)))
      (should (string-match-p "^pass Emacs: " text))
      (should (string-match-p "^warn Companion: the mode is off\n     -> M-x qwen-companion-mode$"
                              text))
      (should (string-match-p "^pass Python: 3\\." text))
      (should (string-match-p "^pass Python packages: " text))
      (should-not (string-match-p "Server at port" text)))
    (goto-char (point-min))
    (forward-button 1)
    (should (equal "M-x qwen-companion-mode" (button-label (button-at (point)))))
    (qwen-companion-doctor-copy)
    (should (equal (buffer-substring-no-properties (point-min) (point-max))
                   (substring-no-properties (current-kill 0))))))

(ert-deftest qwen-companion-doctor-test-a-button-runs-the-command-of-a-remedy ()
  "After it the check passes: the files for CLIs are written then."
  (qwen-companion-test-with-process
    (let ((directory (expand-file-name "home/.qwen/ide/"))
          (default-directory (expand-file-name "project/")))
      (make-directory directory t)
      (set-file-modes directory #o777)
      (make-directory ".git" t)
      (qwen-companion-mode 1)
      (qwen-companion-roots-add (directory-file-name default-directory))
      (qwen-companion-test-wait-for (eq 'ready (qwen-companion-state)))
      (qwen-companion-doctor-test--report
        (should (string-match "^fail .*: other users can write to .*\n     -> chmod go-w "
                              (buffer-string)))
        (goto-char (match-end 0))
        (push-button (point))
        (qwen-companion-test-wait-for
         (and (not qwen-companion-doctor--process)
              (string-match-p "^pass Lock file: " (buffer-string)))))
      (kill-buffer "*qwen-companion remedy*"))))

(ert-deftest qwen-companion-doctor-test-a-root-that-is-not-recorded-is-said ()
  (cl-letf (((symbol-function 'qwen-companion-roots-published) (lambda () '("/p")))
            (qwen-companion-journal--unrecorded nil))
    (qwen-companion-journal-on-unrecorded '(:reasons (("/p" "a pipe\nis there") ("/not-published" "x"))))
    (qwen-companion-doctor-test--report
      (should (string-match-p "^warn Journal: Changes in /p are not recorded: a pipe is there$"
                              (string-replace "\\n" " " (buffer-string))))
      (should-not (string-search "/not-published" (buffer-string))))))

(ert-deftest qwen-companion-doctor-test-a-place-is-checked-from-a-buffer-there ()
  (let ((default-directory "/ssh:far:/p/")
        (qwen-companion-places--served nil))
    (qwen-companion-doctor-test--report
      (should (string-match-p "^warn far: its CLIs are not served\n     -> M-x qwen-companion-serve-place$"
                              (buffer-string))))
    (qwen-companion-places-set "/ssh:far:" '(:name "/ssh:far:" :state ready))
    (let (asked)
      (cl-letf (((symbol-function 'qwen-companion-backend-request)
                 (lambda (method payload callback)
                   (setq asked (list method payload callback)))))
        (qwen-companion-doctor-test--report
          (should (equal '(check-place (:place "/ssh:far:" :program "qwen"))
                         (butlast asked)))
          (dotimes (_ 2)
            (funcall (nth 2 asked)
                     '(:id 1 :lines ("(\"fail\" \"CLI\" \"qwen is not on PATH\" \"install it\" \"\")"))))
          (should (string-match-p "^fail far CLI: qwen is not on PATH\n     -> install it\n"
                                  (buffer-string)))
          (goto-char (point-min))
          (should (= 1 (how-many "^fail far CLI"))))))))

(ert-deftest qwen-companion-doctor-test-other-buffers-revert-as-before ()
  "They are not given the command of the report, without which none follows its file."
  (let ((before (default-value 'revert-buffer-function)))
    (with-temp-buffer
      (qwen-companion-doctor-mode)
      (should-not (eq before revert-buffer-function)))
    (should (eq before (default-value 'revert-buffer-function)))))

(ert-deftest qwen-companion-doctor-test-failures-are-said ()
  (qwen-companion-test-with-failure "no room\nleft"
    (qwen-companion-doctor-test--report
      (should (string-match-p "^fail Companion: no room\\\\nleft$" (buffer-string)))
      (should (string-match-p "Something failed, see above" (buffer-string))))))

(ert-deftest qwen-companion-doctor-test-compiled-files ()
  "The files that installing generates are not compiled, which is no finding."
  (qwen-companion-test-with-files '(("qwen-companion.el" "") ("qwen-companion.elc" "")
                                    ("qwen-companion-pkg.el" "")
                                    ("qwen-companion-autoloads.el" ""))
    (let ((load-path (list directory)))
      (should (member '("pass" "Compiled files" "up to date" "") (qwen-companion-doctor--emacs)))
      (write-region "" nil "qwen-companion-ask.el" nil 'silent)
      (should (equal '("warn" "1 of ours are missing or older than their source, like qwen-companion-ask.el")
                     (let ((found (cl-find "Compiled files" (qwen-companion-doctor--emacs)
                                           :key #'cadr :test #'equal)))
                       (list (nth 0 found) (nth 2 found))))))))

(ert-deftest qwen-companion-doctor-test-context ()
  "The report counts the files that were told, and names none."
  (let ((qwen-companion-backend--state 'ready)
        (qwen-companion-context--sent nil))
    (should (member '("warn" "Context" "nothing has been sent" "visit a file of the project")
                    (qwen-companion-doctor--companion)))
    (setq qwen-companion-context--sent
          '(:files ((:path "/salary/a") (:path "/salary/b")) :active "/salary/a" :text "hidden"))
    (let ((checks (qwen-companion-doctor--companion)))
      (should (member '("pass" "Context" "sent: open files 2, current ones 1" "") checks))
      (should-not (string-match-p "salary\\|hidden" (format "%s" checks))))))

(ert-deftest qwen-companion-doctor-test-disabled-checkers ()
  "Emacs 30 disables the one that compiles a Lisp file that is not trusted."
  (qwen-companion-test-with-files '(("a.el" "(car)\n"))
    (should (equal "pass" (car (qwen-companion-doctor--checkers))))
    (with-current-buffer (find-file-noselect "a.el")
      (setq-local flymake-diagnostic-functions
                  (list (defun qwen-companion-doctor-test--check (&rest _)
                          (error "Not trusted"))))
      (flymake-mode)
      (flymake-start)
      (should (equal '("warn" "Checkers"
                       "disabled by Flymake: qwen-companion-doctor-test-check")
                     (seq-take (qwen-companion-doctor--checkers) 3))))))

(ert-deftest qwen-companion-doctor-test-terminals ()
  "Emacs tells the Python part of the live terminals with CLIs."
  (qwen-companion-test-with-files nil
    (with-temp-buffer
      (rename-buffer "*qwen: é*" t)
      (setq qwen-companion-terminal-directory default-directory)
      (should (equal [] (qwen-companion-doctor--terminals)))
      (let ((process (start-process "cat" (current-buffer) "cat")))
        (unwind-protect
            (let ((request (json-parse-string (qwen-companion-doctor--request))))
              (should (equal (list (buffer-name) (process-id process) default-directory :false)
                             (mapcar (lambda (key)
                                       (gethash key (aref (gethash "terminals" request) 0)))
                                     '("name" "pid" "directory" "connected")))))
          (set-process-query-on-exit-flag process nil)
          (delete-process process))))))

(ert-deftest qwen-companion-doctor-test-no-python ()
  "An interpreter that cannot run the checks, and none at all."
  (let ((qwen-companion-python "false"))
    (qwen-companion-doctor-test--report
      (should (string-match-p "^fail Python part: the checks ended early\n     -> run M-x qwen-companion-install-backend, or "
                              (buffer-string)))
      (goto-char (point-min))
      (while (and (forward-button 1 nil nil t)
                  (not (equal "M-x qwen-companion-install-backend"
                              (button-label (button-at (point)))))))
      (should (button-at (point)))))
  (qwen-companion-test-with-files '(("python" "#!/bin/sh\necho 'No module named x' >&2\nexit 1"))
    (set-file-modes "python" #o755)
    (let ((qwen-companion-python (expand-file-name "python")))
      (qwen-companion-doctor-test--report
        (should (string-match-p "checks ended early: No module named x$" (buffer-string))))))
  (should-not (cl-find-if (lambda (buffer) (string-match-p "doctor errors" (buffer-name buffer)))
                          (buffer-list)))
  (let ((qwen-companion-python "no-such-python"))
    (qwen-companion-doctor-test--report
      (should (string-match-p "^fail Python: there is no interpreter" (buffer-string))))))

(ert-deftest qwen-companion-doctor-test-a-bug-report-names-no-project ()
  "A bug report has the checks and the size of each text for a CLI, no name and no text."
  (qwen-companion-test-with-files '(("customer-x/notes.txt" "private"))
    (qwen-companion-test-with-backend
      (let* ((root (expand-file-name "customer-x"))
             (qwen-companion-backend--state 'ready)
             (qwen-companion-python "no-such-python")
             (qwen-companion-backend--server (qwen-companion-test-server :sessions nil))
             (reports (lambda ()
                        (seq-filter (lambda (buffer)
                                      (string-match-p "bug report\\|doctor" (buffer-name buffer)))
                                    (buffer-list)))))
        (unwind-protect
            (save-window-excursion
              (qwen-companion--on-sessions
               (list :sessions (list (list :id "s1" :protocol "2025-06-18" :client "Qwen Code"
                                           :version "0.24.4" :directory root :streaming t))))
              (qwen-companion-inspector-open)
              (qwen-companion-inspector-on-hook-answers
               '(:session "s1" :answers ((:event "PreToolUse" :tool "edit" :count 3 :time 0
                                          :answer "denied: my words"))))
              (qwen-companion-inspector-on-tool-called
               `(:client "Qwen Code" :request ,(concat "symbols " root "/notes.txt") :size 7
                 :ms 2 :called 0 :failed nil :text "private"))
              (qwen-companion-report-bug)
              (should (= 2 (line-number-at-pos)))
              (qwen-companion-test-wait-for (string-search "Tool symbols" (buffer-string)))
              (let ((text (buffer-string)))
                (should (string-prefix-p "What I did:" text))
                (should (string-match-p "^pass Emacs: " text))
                (should (string-match-p "^pass Connected CLIs: Qwen Code 0.24.4 in <project 1>$" text))
                (should (string-match-p "^Qwen Code 0.24.4: no context\n    PreToolUse edit  3 x, .*denied$"
                                        text))
                (should (string-match-p "^Tool symbols  7 bytes, 2 ms, " text))
                (dolist (private (list "customer-x" "notes" "private" "my words"
                                       (expand-file-name "~/")))
                  (should-not (string-search private text)))))
          (mapc #'kill-buffer (funcall reports))
          (qwen-companion-inspector-forget))))))

(ert-deftest qwen-companion-doctor-test-has-the-keys-of-lists ()
  "They are in the header line and in a menu, and `?' shows them."
  (with-temp-buffer
    (qwen-companion-doctor-mode)
    (should (equal '("g again" "w copy" "TAB next remedy" "? keys")
                   (mapcar (lambda (part) (substring-no-properties (cdr part)))
                           (qwen-companion-header-mode-keys))))
    (should (cl-some (lambda (key) (eq 'menu-bar (aref key 0)))
                     (where-is-internal #'qwen-companion-doctor-copy
                                        qwen-companion-doctor-mode-map)))
    (should (memq #'qwen-companion-header--go-to-click context-menu-functions))))

(provide 'qwen-companion-doctor-test)
;;; qwen-companion-doctor-test.el ends here
