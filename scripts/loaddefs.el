;;; loaddefs.el --- Collect the autoloads of lisp/  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; emacs -Q --batch -l scripts/loaddefs.el -f loaddefs-write
;; emacs -Q --batch -l scripts/loaddefs.el -f loaddefs-check
;;
;; package-vc collects the autoloads of the top folder alone.  So those of the
;; folders of lisp/ are in a file that is committed, and qwen-companion.el
;; loads it.  Emacs's own generators write another file in each version.

;;; Code:

(require 'help)

(defconst loaddefs--file "lisp/qwen-companion-loaddefs.el"
  "The file written, from the top of the checkout.")

(defun loaddefs--forms (form feature)
  "Return the autoload forms for FORM, a definition in FEATURE."
  (pcase form
    (`(defun ,name ,arguments ,(and (pred stringp) doc) . ,body)
     (list `(autoload ',name ,feature
              ,(help-add-fundoc-usage doc arguments)
              ,(and (assq 'interactive body) t))))
    (`(defcustom ,name ,value ,doc . ,_)
     (list `(defvar ,name ,value ,doc)
           `(custom-autoload ',name ,feature t)))
    (_ (error "%s: no autoload for %S" feature (car form)))))

(defun loaddefs--of-file (file)
  "Return the forms for the autoload cookies in FILE."
  (let ((feature (file-name-base file))
        (forms nil))
    (with-temp-buffer
      (insert-file-contents file)
      (emacs-lisp-mode)
      (while (re-search-forward "^;;;###autoload\\(?: \\((.*)\\)\\)?$" nil t)
        (setq forms
              (append forms
                      (if (match-string 1)
                          (list (car (read-from-string (match-string 1))))
                        (loaddefs--forms (read (current-buffer)) feature))))))
    forms))

(defun loaddefs--text ()
  "Return the text of the file of autoloads."
  (let ((print-escape-newlines nil)
        (print-quoted t))
    (concat
     ";;; qwen-companion-loaddefs.el --- Autoloads of the folders  -*- lexical-binding: t; no-byte-compile: t -*-\n\n"
     ";; SPDX-License-Identifier: GPL-3.0-or-later\n\n"
     ";; Written by scripts/loaddefs.el: edit the files it is made of, then run `make build'.\n\n"
     ";;; Code:\n"
     (mapconcat
      (lambda (file)
        (let ((forms (loaddefs--of-file file)))
          (if forms
              (concat "\n;; " (file-name-nondirectory file) "\n"
                      (mapconcat #'prin1-to-string forms "\n") "\n")
            "")))
      (sort (file-expand-wildcards "lisp/*/*.el") #'string<) "")
     "\n(provide 'qwen-companion-loaddefs)\n\n"
     ;; In two parts, or Emacs takes them for those of this file.
     ";; Local " "Variables:\n;; version-control: never\n;; no-update-autoloads: t\n;; End:\n"
     ";;; qwen-companion-loaddefs.el ends here\n")))

(defun loaddefs--current-p (text)
  "Return non-nil if TEXT is that of the file of autoloads."
  (and (file-exists-p loaddefs--file)
       (with-temp-buffer
         (insert-file-contents loaddefs--file)
         (equal text (buffer-string)))))

(defun loaddefs-write ()
  "Write the file of autoloads in the current checkout if it is not current."
  (let ((text (loaddefs--text))
        (coding-system-for-write 'utf-8-unix))
    (unless (loaddefs--current-p text)
      (write-region text nil loaddefs--file nil 'silent))))

(defun loaddefs-check ()
  "Exit with 1 if the file of autoloads in the current checkout is not current."
  (unless (loaddefs--current-p (loaddefs--text))
    (message "%s is not current: run `make build'" loaddefs--file)
    (kill-emacs 1)))

;;; loaddefs.el ends here
