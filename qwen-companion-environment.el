;;; qwen-companion-environment.el --- The Python environment  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The Python environment of the companion is a directory `venv-VERSION' in
;; `qwen-companion-backend-directory', where VERSION is that of the list of
;; packages.  It is made beside the one in use and gets its name when it is
;; complete, so an installation that fails breaks nothing.

;;; Code:

(require 'cl-lib)
(require 'subr-x)

(defcustom qwen-companion-python nil
  "Python interpreter (3.10 or later) that runs the companion's server.
A file name or a command on the variable `exec-path'.  When nil, the
environment made by `qwen-companion-install-backend' is used if there
is one, else the command python3."
  :group 'qwen-companion
  :type '(choice (const :tag "Own environment, else python3" nil)
                 (file :tag "Interpreter")))

(defcustom qwen-companion-backend-directory
  (locate-user-emacs-file "qwen-companion/")
  "Directory where `qwen-companion-install-backend' puts its environments."
  :group 'qwen-companion
  :type 'directory)

(defconst qwen-companion-environment-oldest-python "3.10"
  "Oldest version of Python that the process runs with.")

(defconst qwen-companion-environment-source
  (expand-file-name "python/"
                    (file-name-directory
                     (or load-file-name
                         (bound-and-true-p byte-compile-current-file)
                         buffer-file-name)))
  "Directory that holds the Python package.")

(defvar qwen-companion-environment-made-hook nil
  "Hook run after an environment has been made.")

;;; The one in use

(defun qwen-companion-environment--lock ()
  "Return the name of the file that lists the packages and their hashes."
  (expand-file-name "requirements.lock" qwen-companion-environment-source))

(defun qwen-companion-environment--current ()
  "Return the directory of the environment for this version of the package."
  (expand-file-name
   (concat "venv-"
           (with-temp-buffer
             (set-buffer-multibyte nil)
             (insert-file-contents-literally (qwen-companion-environment--lock))
             (substring (secure-hash 'sha256 (current-buffer)) 0 12)))
   qwen-companion-backend-directory))

(defun qwen-companion-environment--interpreter (directory)
  "Return the interpreter of the environment DIRECTORY, or nil."
  (let ((python (expand-file-name "bin/python" directory)))
    (and (file-executable-p python) python)))

(defun qwen-companion-environment--all ()
  "Return the directories of all complete environments, the newest first."
  (and (file-directory-p qwen-companion-backend-directory)
       (sort (directory-files qwen-companion-backend-directory t
                              "\\`venv\\(-[0-9a-f]+\\)?\\'")
             #'file-newer-than-file-p)))

(defun qwen-companion-environment-python ()
  "Return the file name of the interpreter to use, or nil."
  (cond (qwen-companion-python (executable-find qwen-companion-python))
        ((qwen-companion-environment--interpreter
          (qwen-companion-environment--current)))
        ((cl-some #'qwen-companion-environment--interpreter
                  (qwen-companion-environment--all)))
        ((executable-find "python3"))))

(defun qwen-companion-environment-outdated-p ()
  "Return non-nil when the environment in use is for another version."
  (and (not qwen-companion-python)
       (not (qwen-companion-environment--interpreter
             (qwen-companion-environment--current)))
       (cl-some #'qwen-companion-environment--interpreter
                (qwen-companion-environment--all))))

(defun qwen-companion-environment-remedy ()
  "Return what to do when the interpreter in use lacks a package."
  (if qwen-companion-python
      (format "set `qwen-companion-python' to nil and run M-x qwen-companion-install-backend, or install the packages of %s there"
              (abbreviate-file-name (qwen-companion-environment--lock)))
    "run M-x qwen-companion-install-backend"))

;;; Making one

(declare-function compilation-start "compile"
                  (command &optional mode name-function highlight-regexp))

(defconst qwen-companion-environment--buffer-name "*qwen-companion install*")

(defvar-local qwen-companion-environment--part nil
  "Directory of the environment that is being made in this buffer.")

(defun qwen-companion-environment--commands (python part)
  "Return the commands that make an environment PART with the interpreter PYTHON."
  (let ((own (expand-file-name "bin/python" part))
        (lock (qwen-companion-environment--lock))
        (oldest qwen-companion-environment-oldest-python))
    (cons
     (list python "-c"
           (format "import sys; sys.exit(None if sys.version_info >= (%s) else 'Python %%s is too old, %s is needed; customize qwen-companion-python' %% sys.version.split()[0])"
                   (string-replace "." "," oldest) oldest))
     (if-let* ((uv (executable-find "uv")))
         `((,uv "venv" "--python" ,python ,part)
           (,uv "pip" "install" "--python" ,own "--require-hashes"
                "--compile-bytecode" "-r" ,lock))
       `((,python "-m" "venv" ,part)
         (,own "-m" "pip" "install" "--disable-pip-version-check"
               "--require-hashes" "-r" ,lock))))))

;;;###autoload
(defun qwen-companion-install-backend ()
  "Make the Python environment of the companion, or make it anew.
It goes to `qwen-companion-backend-directory', holds exactly the
packages listed in the package's requirements file (checked by hash),
and is made with uv when that is on the variable `exec-path', else
with the venv and pip of `qwen-companion-python' or python3.  That
happens in the background in a buffer of its own.  Where it fails,
the environment that was there before stays."
  (interactive)
  (require 'compile)
  (let ((python (executable-find (or qwen-companion-python "python3"))))
    (unless python
      (user-error "No Python found as %s; install Python %s or later"
                  (or qwen-companion-python "python3")
                  qwen-companion-environment-oldest-python))
    (condition-case err
        (make-directory qwen-companion-backend-directory t)
      (file-error
       (user-error "Cannot make %s (%s); customize `qwen-companion-backend-directory' to a place where you may write"
                   (abbreviate-file-name qwen-companion-backend-directory)
                   (if (stringp (nth 2 err)) (nth 2 err) (error-message-string err)))))
    (let* ((default-directory (file-name-as-directory
                               (expand-file-name qwen-companion-backend-directory)))
           (part (make-temp-name (concat (qwen-companion-environment--current) ".part-")))
           (buffer (compilation-start
                    (mapconcat (lambda (command)
                                 (mapconcat #'shell-quote-argument command " "))
                               (qwen-companion-environment--commands python part) " && ")
                    nil (lambda (_mode) qwen-companion-environment--buffer-name))))
      (with-current-buffer buffer
        (setq qwen-companion-environment--part part)
        (add-hook 'compilation-finish-functions
                  #'qwen-companion-environment--ended nil t)))))

(defun qwen-companion-environment--ended (buffer outcome)
  "Use the environment that was made in BUFFER, by OUTCOME, a string of compile."
  (let ((part (buffer-local-value 'qwen-companion-environment--part buffer)))
    (if (not (string-prefix-p "finished" outcome))
        (progn
          (delete-directory part t)
          (message "qwen-companion: the installation failed: %s; see the buffer %s"
                   (qwen-companion-environment--cause buffer) (buffer-name buffer)))
      (qwen-companion-environment--switch part)
      (message "qwen-companion: the Python environment is ready%s"
               (if (bound-and-true-p qwen-companion-mode)
                   ""
                 "; M-x qwen-companion-mode uses it"))
      (run-hooks 'qwen-companion-environment-made-hook))))

(defun qwen-companion-environment--cause (buffer)
  "Return the last line that the installation in BUFFER has said."
  (with-current-buffer buffer
    (save-excursion
      (goto-char (point-max))
      (re-search-backward "^Compilation " nil t)
      (skip-chars-backward " \t\n")
      (string-trim (buffer-substring-no-properties (line-beginning-position) (point))))))

(defun qwen-companion-environment--switch (part)
  "Make PART, which is complete, the environment in use; delete the others."
  (let ((current (qwen-companion-environment--current)))
    (when (file-exists-p current)
      (rename-file current (concat part "-old")))
    (rename-file part current)
    ;; A process that runs from one of them has imported what it needs.
    (dolist (other (cons (concat part "-old") (qwen-companion-environment--all)))
      (unless (equal other current)
        (delete-directory other t)))))

;;;###autoload
(defun qwen-companion-uninstall ()
  "Delete the Python environment of the companion, after a question.
Nothing else of it stays on the disk while the mode is off, but your
options and, where CLIs have made them, their directories."
  (interactive)
  (when (bound-and-true-p qwen-companion-mode)
    (user-error "The mode is on; turn `qwen-companion-mode' off first"))
  (let ((environments (or (qwen-companion-environment--all)
                          (user-error "There is no environment in %s"
                                      (abbreviate-file-name
                                       qwen-companion-backend-directory)))))
    (when (yes-or-no-p (format "Delete %s? "
                               (mapconcat #'abbreviate-file-name environments ", ")))
      (dolist (environment environments)
        (delete-directory environment t))
      ;; Only when it is empty.
      (ignore-errors (delete-directory qwen-companion-backend-directory))
      (message "The Python environment is deleted; M-x package-delete removes the Lisp part"))))

(provide 'qwen-companion-environment)
;;; qwen-companion-environment.el ends here
