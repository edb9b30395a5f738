;;; qwen-companion-diagnostics-test.el --- Tests of problems told to models  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; An agent edits a file that a buffer visits, and what the checkers say of
;; it is read as it is sent to the Python process.

;;; Code:

(require 'flymake)
(require 'qwen-companion-test-helper)

(defvar qwen-companion-diagnostics-test--report nil
  "The function to which the checker of these tests reports, when it waits.")
(defvar qwen-companion-diagnostics-test--checks 0
  "How often the checker of these tests was started.")

(defun qwen-companion-diagnostics-test--found ()
  "Return a problem for each line with \"bad\" and a warning for each \"odd\"."
  (save-excursion
    (goto-char (point-min))
    (cl-loop while (re-search-forward "\\(bad\\|odd\\).*" nil t)
             collect (flymake-make-diagnostic
                      (current-buffer) (match-beginning 0) (match-end 0)
                      (if (equal "bad" (match-string 1)) :error :warning)
                      (match-string 0)))))

(defun qwen-companion-diagnostics-test--check (report &rest _)
  "Check the current buffer, and have REPORT called later."
  (cl-incf qwen-companion-diagnostics-test--checks)
  (setq qwen-companion-diagnostics-test--report
        (let ((buffer (current-buffer)))
          (lambda ()
            (with-current-buffer buffer
              (funcall report (qwen-companion-diagnostics-test--found)))))))

(defmacro qwen-companion-diagnostics-test--with (text &rest body)
  "Run BODY in a buffer that visits a checked file with TEXT."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-files (list (list "a.txt" ,text))
     (qwen-companion-test-with-backend
       (let ((qwen-companion-diagnostics-test--report nil)
             (qwen-companion-diagnostics-test--checks 0)
             (flymake-no-changes-timeout nil))
         (with-current-buffer (find-file-noselect "a.txt")
           (setq-local flymake-diagnostic-functions
                       (list #'qwen-companion-diagnostics-test--check))
           (flymake-mode)
           (flymake-start)
           (funcall qwen-companion-diagnostics-test--report)
           (unwind-protect (progn ,@body)
             (flymake-mode -1)
             (qwen-companion-tools-forget)
             (qwen-companion-diagnostics-forget)))))))

(defmacro qwen-companion-diagnostics-test--visiting (text &rest body)
  "Run BODY in a buffer that visits a.py, a file with TEXT."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-diagnostics--wait qwen-companion-test-limit))
     (qwen-companion-test-with-files (list (list "a.py" ,text))
       (qwen-companion-test-with-backend
         (with-current-buffer (find-file-noselect "a.py")
           (unwind-protect (progn ,@body)
             (qwen-companion-tools-forget)
             (qwen-companion-diagnostics-forget)))))))

(defun qwen-companion-diagnostics-test--call (name &optional path)
  "Call the report NAME about PATH, as the Python process does."
  (setq qwen-companion-test-calls nil)
  (qwen-companion-tools-on-call
   (list :id 1 :name name :arguments (and path (list (list "path" path)))
         :everywhere t :deadline (* 1000 (+ 1000 (float-time))))))

(defun qwen-companion-diagnostics-test--answer ()
  "Wait for the answer to the call; each item is (LINE . TEXT), or TEXT."
  (let ((answer (car (qwen-companion-test-wait-for (qwen-companion-test-sent 'tool-answer)))))
    (should-not (plist-get answer :error))
    (mapcar (lambda (item)
              (if (plist-get item :line)
                  (cons (plist-get item :line) (plist-get item :text))
                (plist-get item :text)))
            (plist-get answer :items))))

(defun qwen-companion-diagnostics-test--edit (change)
  "Return the text for the model after the function CHANGE edits this buffer.
Each is (LINE . TEXT), or TEXT."
  (qwen-companion-diagnostics-on-edit-begins (list :path buffer-file-name))
  (let ((checks qwen-companion-diagnostics-test--checks)
        (inhibit-modification-hooks nil))
    (setq qwen-companion-diagnostics-test--report nil)
    (funcall change)
    (set-buffer-modified-p nil)
    (qwen-companion-diagnostics-test--call "new-problems" buffer-file-name)
    (qwen-companion-test-wait-for (or qwen-companion-diagnostics-test--report (qwen-companion-test-sent 'tool-answer)))
    ;; Nothing is told before the checker has reported on the new text.
    (when qwen-companion-diagnostics-test--report
      (should (< checks qwen-companion-diagnostics-test--checks))
      (should-not (qwen-companion-test-sent 'tool-answer))
      (funcall qwen-companion-diagnostics-test--report))
    (qwen-companion-diagnostics-test--answer)))

(defun qwen-companion-diagnostics-test--insert (text)
  "Return a function that inserts TEXT at the start of the current buffer."
  (lambda ()
    (goto-char (point-min))
    (insert text)))

(defun qwen-companion-diagnostics-test--error (message)
  "Return the text for the model about an error with MESSAGE."
  (format "error: %s (qwen-companion-diagnostics-test-check)" message))

(ert-deftest qwen-companion-diagnostics-test-only-new-problems-are-told ()
  (qwen-companion-diagnostics-test--with "bad old\nfine\n"
    ;; It stands on another line now, and is no news.
    (should-not (qwen-companion-diagnostics-test--edit
                 (qwen-companion-diagnostics-test--insert "good\n")))
    (should (equal (list (cons 1 (qwen-companion-diagnostics-test--error "bad new")))
                   (qwen-companion-diagnostics-test--edit
                    (qwen-companion-diagnostics-test--insert "bad new\nodd\n"))))
    ;; The same once more is one more.
    (should (equal (list (qwen-companion-diagnostics-test--error "bad old"))
                   (mapcar #'cdr (qwen-companion-diagnostics-test--edit
                                  (qwen-companion-diagnostics-test--insert "bad old\n")))))
    (should-not (qwen-companion-diagnostics-test--edit #'erase-buffer))))

(ert-deftest qwen-companion-diagnostics-test-the-option-chooses-the-severities ()
  (qwen-companion-diagnostics-test--with "fine\n"
    (let ((qwen-companion-tell-problems 'all))
      (should (equal '("bad" "odd")
                     (mapcar (lambda (told) (nth 1 (split-string (cdr told))))
                             (qwen-companion-diagnostics-test--edit
                              (qwen-companion-diagnostics-test--insert "odd\nbad\n"))))))
    (let ((qwen-companion-tell-problems nil))
      (should-not (qwen-companion-diagnostics-test--edit
                   (qwen-companion-diagnostics-test--insert "bad other\n"))))))

(ert-deftest qwen-companion-diagnostics-test-there-is-a-limit ()
  (qwen-companion-diagnostics-test--with "fine\n"
    (let ((told (qwen-companion-diagnostics-test--edit
                 (qwen-companion-diagnostics-test--insert
                  (concat "bad " (make-string 1000 ?x) "\n"
                          (mapconcat (lambda (n) (format "bad %d\n" n))
                                     (number-sequence 1 30) ""))))))
      (should (= 21 (length told)))
      (should (equal "(11 more.)" (car (last told))))
      (should (> 400 (length (cdar told)))))))

(ert-deftest qwen-companion-diagnostics-test-a-checker-that-is-slow-is-not-waited-for ()
  "The same holds for a text that never changes, and a file that nobody visits."
  (qwen-companion-diagnostics-test--with "fine\n"
    (let ((qwen-companion-diagnostics--wait 0.1))
      (dolist (change (list (lambda () (goto-char (point-min)) (insert "bad\n")) #'ignore))
        (qwen-companion-diagnostics-on-edit-begins (list :path buffer-file-name))
        (funcall change)
        (dolist (path (list buffer-file-name "/nowhere"))
          (qwen-companion-diagnostics-test--call "new-problems" path)
          (should-not (qwen-companion-diagnostics-test--answer)))))))

(ert-deftest qwen-companion-diagnostics-test-says-when-it-was-not-checked-before ()
  (qwen-companion-diagnostics-test--with "bad old\n"
    (flymake-start)
    (should (equal "The file had not been checked before, so some of these may be old."
                   (car (last (qwen-companion-diagnostics-test--edit
                               (qwen-companion-diagnostics-test--insert "bad new\n"))))))))

(ert-deftest qwen-companion-diagnostics-test-hidden-files-are-not-told ()
  (qwen-companion-diagnostics-test--with "fine\n"
    (should (qwen-companion-diagnostics-on-edit-begins (list :path buffer-file-name)))
    (qwen-companion-diagnostics-forget)
    (setq qwen-companion-exposure 'hide)
    (should-not (qwen-companion-diagnostics-on-edit-begins (list :path buffer-file-name)))
    (qwen-companion-diagnostics-test--call "new-problems" buffer-file-name)
    (should-not (qwen-companion-diagnostics-test--answer))))

(ert-deftest qwen-companion-diagnostics-test-with-a-prompt ()
  (cl-flet ((facts ()
              (qwen-companion-diagnostics-test--call "prompt-facts")
              (mapcar (lambda (item) (if (consp item) (cdr item) item)) (qwen-companion-diagnostics-test--answer))))
    (qwen-companion-diagnostics-test--with "fine\n"
      (should-not (facts))
      (insert "bad x\nodd\n")
      (flymake-start)
      (funcall qwen-companion-diagnostics-test--report)
      (cl-letf (((symbol-function 'qwen-companion-context-active-file)
                 (let ((buffer (current-buffer))) (lambda () buffer))))
        (should (equal (list "has unsaved changes in Emacs; the disk has the older text"
                             (qwen-companion-diagnostics-test--error "bad x"))
                       (facts)))
        (let ((qwen-companion-tell-problems nil))
          (should (= 1 (length (facts)))))))))

;;; Real checkers

(declare-function flycheck-mode "ext:flycheck" (&optional arg))
(defvar flycheck-checkers)
(defvar lsp--default-notification-handlers)
(defvar lsp-managed-mode)

(defun qwen-companion-diagnostics-test--break-and-mend (start)
  "Test the reports to a model that breaks and repairs a Python file.
START is called to have the current buffer checked.  Return what is told
of the broken file."
  (qwen-companion-diagnostics-test--visiting "x = 1\n"
    (funcall start)
    (qwen-companion-test-wait-for (not (qwen-companion-problems-pending-p)))
    (should-not (qwen-companion-problems))
    (prog1 (qwen-companion-diagnostics-test--edit (qwen-companion-diagnostics-test--insert "y = (\n"))
      (should-not (qwen-companion-diagnostics-test--edit (lambda ()
                                                           (goto-char (point-min))
                                                           (delete-region (point) (line-beginning-position 2)))))
      (should-not (qwen-companion-problems)))))

(ert-deftest qwen-companion-diagnostics-test-flycheck ()
  ;; It comes from a package of Debian.
  (skip-unless (qwen-companion-test-load 'flycheck))
  (let ((flycheck-checkers '(python-pycompile)))
    (pcase-let ((`((,line . ,text))
                 (qwen-companion-diagnostics-test--break-and-mend #'flycheck-mode)))
      (should (= 1 line))
      (should (string-match-p "\\`error: .+ (python-pycompile)\\'" text)))))

(ert-deftest qwen-companion-diagnostics-test-eglot ()
  "With a real language server, which reports some time after it was asked."
  ;; A part of Emacs since 29; before that, it comes from a package of Debian.
  (skip-unless (qwen-companion-test-load 'eglot))
  (let ((told (qwen-companion-diagnostics-test--break-and-mend
               (lambda ()
                 (qwen-companion-test-eglot "ruff" "server")
                 ;; By itself it waits for a window.
                 (flymake-start)))))
    (should (string-match-p "\\`error: Ruff .+ (eglot)\\'" (cdar told)))))

(defun qwen-companion-diagnostics-test--rewrite (text)
  "Return a function that writes TEXT as an agent does, and reverts this buffer."
  (lambda ()
    (write-region text nil buffer-file-name nil 'silent)
    (revert-buffer t t t)))

(ert-deftest qwen-companion-diagnostics-test-servers-that-report-in-steps ()
  "A revert closes the file, which ends the reports on it, and opens it again.
What the server says of the new text comes after that, perhaps in steps."
  (skip-unless (qwen-companion-test-load 'eglot))
  (dolist (options '((:versions t :reports [0.1])
                     (:reports [0.1])
                     (:versions t :reports [0.02 0.1])))
    (let ((qwen-companion-servers--quiet '(0.3 . 0.6))
          (good "x = 1\n"))
      (qwen-companion-diagnostics-test--visiting good
        (apply #'qwen-companion-test-language-server options)
        (flymake-start)
        (should (string-search "Bad (eglot)"
                               (format "%S" (qwen-companion-diagnostics-test--edit (qwen-companion-diagnostics-test--rewrite "x = 1\nbad\n")))))
        (should-not (qwen-companion-diagnostics-test--edit (qwen-companion-diagnostics-test--rewrite good)))
        (kill-buffer)))))

;; Flymake is told of no problems by eglot itself, at once.
(ert-deftest qwen-companion-diagnostics-test-a-server-that-has-not-reported-yet ()
  (skip-unless (qwen-companion-test-load 'eglot))
  (qwen-companion-diagnostics-test--visiting "x = 1\n"
    (qwen-companion-servers-enable)
    (qwen-companion-test-language-server :reports [0.3])
    (flymake-start)
    (qwen-companion-test-wait-for (not (qwen-companion-problems-pending-p)))
    (cl-flet ((told ()
                (qwen-companion-diagnostics-test--call "diagnostics" buffer-file-name)
                (format "%S" (qwen-companion-diagnostics-test--answer))))
      (should (string-search "has not been checked yet" (told)))
      (qwen-companion-test-wait-for (not (string-search "has not been checked yet" (told)))))
    (kill-buffer)))

(ert-deftest qwen-companion-diagnostics-test-a-file-that-is-opened-again ()
  "When it is closed, a server ends its reports, which does not mean no problems."
  (skip-unless (qwen-companion-test-load 'eglot))
  (qwen-companion-diagnostics-test--visiting "x = 1\nbad\n"
    (qwen-companion-servers-enable)
    (qwen-companion-test-language-server :versions t :reports [0.3])
    (flymake-start)
    (cl-flet ((told ()
                (qwen-companion-diagnostics-test--call "diagnostics" buffer-file-name)
                (format "%S" (qwen-companion-diagnostics-test--answer))))
      (qwen-companion-test-wait-for (string-search "Bad" (told)))
      (revert-buffer t t t)
      (qwen-companion-test-wait-for (not (string-search "Bad" (told))))
      (should (string-search "has not been checked yet" (told)))
      (qwen-companion-test-wait-for
       (let ((told (told)))
         (should-not (string-search "No problems" told))
         (string-search "Bad" told))))
    (kill-buffer)))

(ert-deftest qwen-companion-diagnostics-test-lsp-mode ()
  "With a stand-in for lsp-mode and its server.
When Flymake starts, or the server reports on another file, it reports what
it knew; what the server says of the new text, which it would get a second
later by itself, comes afterwards."
  (qwen-companion-diagnostics-test--with "fine\n"
    (let* ((lsp--default-notification-handlers (make-hash-table :test #'equal))
           (buffer (current-buffer))
           (known nil)
           (report nil))
      (setq-local lsp-managed-mode t)
      (setq flymake-diagnostic-functions
            (list (lambda (function &rest _)
                    (setq report (lambda ()
                                   (funcall function known :region (cons (point-min) (point-max)))))
                    (funcall report))))
      (puthash "textDocument/publishDiagnostics"
               (lambda (_workspace about)
                 (with-current-buffer buffer
                   (setq known (if (string-suffix-p "a.txt" (plist-get about :uri))
                                   (qwen-companion-diagnostics-test--found)
                                 (mapcar (lambda (problem)
                                           (flymake-make-diagnostic
                                            buffer (point-max) (point-max)
                                            (flymake-diagnostic-type problem)
                                            (flymake-diagnostic-text problem)))
                                         known)))
                   (funcall report)))
               lsp--default-notification-handlers)
      (cl-letf (((symbol-function 'lsp-workspaces) (lambda () '(workspace)))
                ((symbol-function 'lsp--versioned-text-document-identifier)
                 (lambda () (list :uri (concat "file://" buffer-file-name) :version 1)))
                ((symbol-function 'lsp--flush-delayed-changes)
                 (lambda ()
                   (pcase-dolist (`(,delay . ,file) `((0.05 . "/other.txt")
                                                      (0.1 . ,(buffer-file-name buffer))))
                     (run-at-time
                      delay nil
                      (lambda ()
                        (funcall (gethash "textDocument/publishDiagnostics"
                                          lsp--default-notification-handlers)
                                 'workspace
                                 (list :uri (concat "file://" file) :diagnostics []))))))))
        (flymake-start)
        (should (string-search "error: bad"
                               (cdar (qwen-companion-diagnostics-test--edit
                                      (qwen-companion-diagnostics-test--insert "bad\n")))))
        (should-not (qwen-companion-diagnostics-test--edit
                     (lambda () (delete-region (point-min) 5))))
        (should-not known)
        (qwen-companion-diagnostics-forget)))))

(provide 'qwen-companion-diagnostics-test)
;;; qwen-companion-diagnostics-test.el ends here
